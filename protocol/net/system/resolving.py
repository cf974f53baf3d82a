"""Looks host names up in threads of their own, shares look-ups between callers, and bounds how long a caller waits.

Rules:
- A look-up may take minutes, as long as the system's name servers need, and cannot be cancelled. So each has a daemon
  thread, which the end of the process does not wait for.
- A caller waits until the look-up is LIMIT seconds old. The look-up goes on, and an answer that comes later is kept
  for LATE seconds, for the next caller.
- A failure is remembered for about as long as it took, so that asking again at once fails at once.
- At most AT_ONCE names are looked up at a time. They come from our owner: no peer can make us look one up.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress

from shoal.protocol.base.errors import TransportError

LIMIT = 6.0  # seconds: enough for a second name server, as most systems wait 5 s for a silent first one
LATE = 60.0  # seconds for which an answer that came after LIMIT is kept
REMEMBERED = (1.0, 10.0)  # seconds for which a failure is remembered, at least and at most
AT_ONCE = 64

Host = tuple[socket.AddressFamily, str]
Key = tuple[str, int]  # a name and a family


class _LookUp:
    """A look-up, under way or ended; its thread sets the result."""

    def __init__(self, name: str, family: int, began: float) -> None:
        self.began = self.ended = began
        self.result = Future[tuple[Host, ...]]()
        self.result.set_running_or_notify_cancel()  # all callers share it, so none of them can cancel it
        self._name, self._family = name, family

    def run(self) -> None:
        """Ask the system, however long it takes."""
        try:
            found = socket.getaddrinfo(self._name, None, self._family, socket.SOCK_STREAM)
        except Exception as error:  # raised in the callers
            self.ended = time.monotonic()
            self.result.set_exception(error)
        else:
            self.ended = time.monotonic()
            self.result.set_result(tuple(dict.fromkeys((family, str(where[0])) for family, *_, where in found)))

    @property
    def is_over(self) -> bool:
        """Whether the system has answered."""
        return self.result.done()

    def counts_until(self) -> float:
        """The time (monotonic) until which callers get this result instead of a new look-up."""
        if not self.is_over:
            return math.inf
        took = self.ended - self.began
        if self.result.exception() is None:
            return self.ended + (LATE if took > LIMIT else 0.0)
        least, most = REMEMBERED
        return self.ended + min(most, max(least, took))


class Resolver:
    """All look-ups of a process; may be used from any event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._look_ups: dict[Key, _LookUp] = {}

    async def look_up(self, name: str, family: int = socket.AF_UNSPEC) -> tuple[Host, ...]:
        """The addresses of `name`, each once; TransportError if it has none, or there is no answer in time."""
        try:
            look_up = self._shared(name, family)
            left = max(0.0, look_up.began + LIMIT - time.monotonic())
            with suppress(TimeoutError):
                if not look_up.is_over:
                    await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(look_up.result)), left)
            if look_up.is_over:
                return look_up.result.result()
        except (OSError, UnicodeError, RuntimeError) as error:  # no such name, an invalid one, or no thread for it
            why = getattr(error, "strerror", None) or str(error)
        else:
            why = f"this machine's name servers have not answered in {LIMIT:g} s"
        raise TransportError(f"the name {name} cannot be looked up: {why}", "unresolved")

    def _shared(self, name: str, family: int) -> _LookUp:
        """The look-up that is under way or whose result still counts; else a new one."""
        key, now = (name, family), time.monotonic()
        with self._lock:
            self._look_ups = {each: found for each, found in self._look_ups.items() if found.counts_until() > now}
            if key in self._look_ups:
                return self._look_ups[key]
            if sum(not each.is_over for each in self._look_ups.values()) >= AT_ONCE:
                raise RuntimeError(f"{AT_ONCE} other names are being looked up, and none is answered")
            look_up = _LookUp(name, family, now)
            threading.Thread(target=look_up.run, name=f"look up {name}", daemon=True).start()
            self._look_ups[key] = look_up
            return look_up


RESOLVER = Resolver()

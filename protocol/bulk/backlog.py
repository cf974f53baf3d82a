"""The payloads of one flow that wait for a carrier: threads wait for the next one, the loop looks.

Rules:
- What is queued is bounded in bytes: payloads that were encoded count with their size, the others with none, as they
  hold no memory before their turn.
- What a broken carrier had in hand comes back to the front, with what it had written last and may never have arrived.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.errors import TransportError
from shoal.protocol.wire import Payload

TRIES = 4  # carriers that a payload may be lost with
UNWANTED = TransportError("nobody wants it any more")

Packed = tuple[bytes, bytes, Payload]  # prefix, head, payload


@dataclass(slots=True, eq=False)
class Parcel:
    """A payload to be sent: made by `pack`, in any thread. In the loop, `sent(bytes)` or `lost(reason)` follows."""

    size: int  # bytes that it holds while it waits
    pack: Callable[[], Packed]
    sent: Callable[[int], None]
    lost: Callable[[TransportError], None]
    is_wanted: Callable[[], bool] = lambda: True  # asked before it is packed, in any thread; if not, it is lost
    was_sent: bool = False  # that was said already: it goes once more, as it may not have arrived
    tries: int = 0  # carriers that broke with it


class Backlog:
    """First in, first out, to as many takers as there are."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Parcel] = deque()
        self._size = 0
        self._has_more = threading.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, parcel: Parcel) -> bool:
        """Whether there was room for it."""
        with self._has_more:
            if self._size + parcel.size > self._limit:
                return False
            self._waiting.append(parcel)
            self._size += parcel.size
            self._has_more.notify()
        return True

    def put_back(self, parcels: list[Parcel]) -> None:
        """They are next again, in this order, and there is always room for them."""
        with self._has_more:
            self._waiting.extendleft(reversed(parcels))
            self._size += sum(each.size for each in parcels)
            self._has_more.notify(len(parcels))

    def take_now(self) -> Parcel | None:
        """The next one, if there is one."""
        with self._has_more:
            return self._take()

    def take(self, is_wanted: Callable[[], bool]) -> Parcel | None:
        """The next one, as soon as there is one; None once none `is_wanted` any more, which `wake` has us look at."""
        with self._has_more:
            while is_wanted():
                if self._waiting:
                    return self._take()
                self._has_more.wait()
        return None

    def wake(self) -> None:
        """Have all who wait look whether they still want one."""
        with self._has_more:
            self._has_more.notify_all()

    def clear(self) -> list[Parcel]:
        """All that waited, and waits here no more."""
        with self._has_more:
            dropped, self._size = list(self._waiting), 0
            self._waiting.clear()
        return dropped

    def _take(self) -> Parcel | None:
        if not self._waiting:
            return None
        parcel = self._waiting.popleft()
        self._size -= parcel.size
        return parcel

"""Whose payloads are in memory, and how much of it they may take.

Rules:
- A tenant (a peer's flow) may hold so many bytes, of the room that payloads take; beyond that it waits until some are
  free. One payload it always gets room for.
- Memory may be given back anywhere, also by the garbage collector in the midst of our own lines: then nobody waits.
- Whenever there is news, all who wait look again: so nobody can take another's.

For any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from shoal.protocol.memory import MEMORY, rounded


class Tenant:
    """Who holds memory, and how many bytes at most; None: as many as it likes."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._held = 0
        self._returned: SimpleQueue[int] = SimpleQueue()  # bytes that were given back, and are not settled
        self._waiting: tuple[SimpleQueue[None], ...] = ()  # of each who waits: something has changed
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes."""
        with self._lock:
            self._settle()
            return self._held

    @property
    def is_full(self) -> bool:
        """Whether it should not get more now."""
        return self._most is not None and self.held >= self._most

    def take(self, size: int, is_wanted: Callable[[], bool]) -> memoryview | None:
        """Room for so many bytes, as soon as it may hold them; None once they are not wanted any more (see wake)."""
        news: SimpleQueue[None] = SimpleQueue()
        with self._lock:
            self._waiting = (*self._waiting, news)
        try:
            while is_wanted():
                if self._holds(rounded(size)):
                    return self._room(size)
                news.get()
            return None
        finally:
            with self._lock:
                self._waiting = tuple(each for each in self._waiting if each is not news)

    def lend(self, size: int) -> memoryview:
        """Room for so many bytes, at once: for who has looked before whether it is full."""
        with self._lock:
            self._held += rounded(size)
        return self._room(size)

    def wake(self) -> None:
        """Have all who wait look whether they still want more, and may have it."""
        for each in self._waiting:
            each.put(None)

    def _room(self, size: int) -> memoryview:
        """For what is held already."""
        gave_back = partial(self._gave_back, rounded(size))
        try:
            return MEMORY.lend(size, gave_back)
        except BaseException:  # there is none
            gave_back()
            raise

    def _gave_back(self, size: int) -> None:
        self._returned.put(size)
        self.wake()

    def _holds(self, size: int) -> bool:
        """Hold so many bytes more, if that is allowed."""
        with self._lock:
            self._settle()
            if self._held and self._most is not None and self._held + size > self._most:
                return False
            self._held += size
            return True

    def _settle(self) -> None:
        with suppress(Empty):
            while True:
                self._held -= self._returned.get_nowait()

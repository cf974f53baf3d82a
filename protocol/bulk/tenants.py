"""Whose payloads are in memory, and how much of it they may take.

Rules:
- A tenant (a peer's flow) may hold so many bytes; beyond that it waits until some are free. One payload it always gets
  room for.
- Memory may be given back anywhere, also by the garbage collector in the midst of our own lines: that only leaves word.

For any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from shoal.protocol.memory import MEMORY


class Tenant:
    """Who holds memory, and how many bytes at most; None: as many as it likes."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._held, self._takers = 0, 0
        self._returned: SimpleQueue[int] = SimpleQueue()  # bytes
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
        with self._lock:
            self._takers += 1
        try:
            while is_wanted():
                if self._holds(size):
                    return self._room(size)
                self._wait()
            return None
        finally:
            with self._lock:
                self._takers -= 1
            self.wake()  # there may be room for two

    def lend(self, size: int) -> memoryview:
        """Room for so many bytes, at once: for who has looked before whether it is full."""
        with self._lock:
            self._held += size
        return self._room(size)

    def wake(self) -> None:
        """Have all who wait look whether they still want more."""
        for _ in range(self._takers):
            self._returned.put(0)

    def _room(self, size: int) -> memoryview:
        return MEMORY.lend(size, partial(self._returned.put, size))

    def _holds(self, size: int) -> bool:
        """Hold so many bytes more, if that is allowed."""
        with self._lock:
            self._settle()
            if self._held and self._most is not None and self._held + size > self._most:
                return False
            self._held += size
            return True

    def _wait(self) -> None:
        returned = self._returned.get()
        with self._lock:
            self._held -= returned

    def _settle(self) -> None:
        with suppress(Empty):
            while True:
                self._held -= self._returned.get_nowait()

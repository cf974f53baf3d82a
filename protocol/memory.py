"""Memory for payloads and sums: used again as soon as nobody looks at it any more.

Fresh memory costs more than to fill it: the system clears it page by page, when it is first touched.

Rules:
- Room is free when the last view of it is gone: nobody gives it back by hand, and so nobody can forget to.
- Rooms of one size are cut from arenas, of which the system is asked to make huge pages: 512 times fewer faults.
- As a round needs what the last one has left, what is free stays here: as many bytes as were lent at the most since
  `trim`, or KEPT, with those that are lent. Beyond that, arenas of which nothing is lent go back to the system.
- A view may go anywhere, also by the garbage collector in the midst of our own lines: nobody waits for a lock then.

For any thread.
"""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

ARENA = 16 << 20  # bytes of an arena, or a room's, if that is more; what is never touched costs nothing
KEPT = 64 << 20  # bytes, lent or free
ROUND = 1 << 16  # bytes: sizes are rounded up to this, so that one room serves another codec, too

Room = npt.NDArray[np.uint8]


def rounded(size: int) -> int:
    """How many bytes the room for so many takes."""
    return max(1, -(-size // ROUND)) * ROUND


class Memory:
    """Arenas, by the size of the rooms in them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._spare, self._lent, self._most_lent = 0, 0, 0
        self._with_room: dict[int, list[_Arena]] = defaultdict(list)  # arenas that have something free
        self._unused: dict[_Arena, None] = {}  # those of them of which nothing is lent, the longest unused first
        self._returned: SimpleQueue[tuple[_Arena, Room]] = SimpleQueue()
        self._lock = threading.Lock()

    @property
    def spare(self) -> int:
        """Bytes that are free."""
        return self._spare

    def lend(self, size: int, gave_back: Callable[[], None] = lambda: None) -> memoryview:
        """Room for so many bytes, with anything in it. Once it is free, `gave_back` is called, which never waits."""
        with self._lock:
            self._take_back()
            arena, room = self._take(rounded(size))
        view = np.frombuffer(room.data, np.uint8)  # goes when all that looks at the room has: none looks past it
        weakref.finalize(view, self._free, arena, room, gave_back).atexit = False
        return view.data[:size]

    def trim(self) -> None:
        """Who needed much needs it no more."""
        with self._lock:
            self._take_back()
            self._most_lent = self._lent
            self._give_up(max(self._kept, self._lent))

    def _free(self, arena: _Arena, room: Room, gave_back: Callable[[], None]) -> None:
        self._returned.put((arena, room))
        if self._lock.acquire(blocking=False):  # else whoever lends next takes it back
            try:
                self._take_back()
            finally:
                self._lock.release()
        gave_back()

    def _take_back(self) -> None:
        with suppress(Empty):
            while True:
                self._put(*self._returned.get_nowait())

    def _take(self, size: int) -> tuple[_Arena, Room]:
        arenas = self._with_room[size]
        if not arenas:
            arenas.append(_Arena(size))
            self._spare += arenas[-1].size
        arena = arenas[-1]
        room = arena.free.pop()
        self._unused.pop(arena, None)
        if not arena.free:
            arenas.pop()
        self._spare, self._lent = self._spare - size, self._lent + size
        self._most_lent = max(self._most_lent, self._lent)
        return arena, room

    def _put(self, arena: _Arena, room: Room) -> None:
        if not arena.free:
            self._with_room[len(room)].append(arena)
        arena.free.append(room)
        self._spare, self._lent = self._spare + len(room), self._lent - len(room)
        if arena.is_unused:
            self._unused[arena] = None
        self._give_up(max(self._kept, self._most_lent))

    def _give_up(self, kept: int) -> None:
        while self._unused and self._spare + self._lent > kept:
            self._drop(next(iter(self._unused)))

    def _drop(self, arena: _Arena) -> None:
        del self._unused[arena]
        self._with_room[len(arena.free[0])].remove(arena)
        self._spare -= arena.size


class _Arena:
    def __init__(self, room: int) -> None:
        number = max(1, ARENA // room)
        self.size = number * room
        memory = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
        self.free = [whole[start : start + room] for start in range(0, self.size, room)]
        self._number = number

    @property
    def is_unused(self) -> bool:
        return len(self.free) == self._number


MEMORY = Memory()  # of the process, as malloc's is


def sweep() -> None:
    """Find what is held by nothing but itself, and give back what nobody needs."""
    gc.collect()
    MEMORY.trim()

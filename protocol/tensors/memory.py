"""Memory for payloads and sums, which is reused as soon as nobody refers to it any more.

Fresh memory costs more than filling it: the system clears it page by page when it is first touched.

Rules:
- A room is free when the last view of it is gone. Nobody gives it back explicitly, so nobody can forget to.
- Rooms of one size are cut from arenas, for which huge pages are requested: 512 times fewer page faults.
- The first arena of a size is one room, and each new one as large as all before it, up to ARENA: so using many sizes
  makes us hold at most twice as much.
- Free memory is kept for the next round: including what is in use, as many bytes as were in use at most since `trim`,
  or KEPT. Beyond that, arenas that are not used at all go back to the system; beyond twice that, the free rooms of
  others, too. (Huge pages are touched as a whole: one more for each size.)
- A view may be dropped anywhere, also by the garbage collector in the middle of this code: no lock is waited for then.

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

from shoal.protocol.base.wire import payload_memory

ARENA = 16 << 20  # bytes of an arena at the most, or a room's, if that is more
KEPT = 64 << 20  # bytes, lent or free

Room = npt.NDArray[np.uint8]


class Memory:
    """Arenas, by the size of the rooms in them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._spare, self._lent, self._most_lent = 0, 0, 0
        self._rooms: dict[int, int] = defaultdict(int)  # how many there are of each size, lent or not
        self._with_room: dict[int, list[_Arena]] = defaultdict(list)  # arenas that have something free
        self._unused: dict[_Arena, None] = {}  # those of them of which nothing is lent, the longest unused first
        self._returned: SimpleQueue[tuple[_Arena, Room]] = SimpleQueue()
        self._lock = threading.Lock()

    @property
    def spare(self) -> int:
        """Bytes that are free, and were lent before: what was never touched costs nothing."""
        return self._spare

    def lend(self, size: int, gave_back: Callable[[], None] = lambda: None) -> memoryview:
        """A room for so many bytes, not cleared. Once it is free, `gave_back` is called, which never waits."""
        with self._lock:
            self._take_back()
            arena, room = self._take(payload_memory(size))
        view = np.frombuffer(room.data, np.uint8)  # goes when all that looks at the room has: none looks past it
        weakref.finalize(view, self._free, arena, room, gave_back).atexit = False
        return view.data[:size]

    def trim(self) -> None:
        """Return memory that is not needed any more."""
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
            arenas.append(_Arena(size, max(1, min(ARENA // size, self._rooms[size]))))
            self._rooms[size] += arenas[-1].number
        arena = arenas[-1]
        self._unused.pop(arena, None)
        self._spare -= size if arena.free else 0
        self._lent += size
        self._most_lent = max(self._most_lent, self._lent)
        room = (arena.free or arena.fresh).pop()
        if arena.is_full:
            arenas.pop()
        self._give_up(max(self._kept, self._most_lent))
        return arena, room

    def _put(self, arena: _Arena, room: Room) -> None:
        if arena.is_full:
            self._with_room[len(room)].append(arena)
        arena.free.append(room)
        self._spare, self._lent = self._spare + len(room), self._lent - len(room)
        if arena.is_unused:
            self._unused[arena] = None
        self._give_up(max(self._kept, self._most_lent))

    def _give_up(self, kept: int) -> None:
        while self._unused and self._spare + self._lent > kept:
            self._drop(next(iter(self._unused)))
        if self._spare + self._lent > 2 * kept:
            self._empty(2 * kept - self._lent)

    def _empty(self, spare: int) -> None:
        """Leave no more than so many bytes free, where the system takes them."""
        for arena in [arena for arenas in self._with_room.values() for arena in arenas]:
            if self._spare <= spare:
                break
            self._spare -= arena.give_back()

    def _drop(self, arena: _Arena) -> None:
        del self._unused[arena]
        self._with_room[arena.room].remove(arena)
        self._rooms[arena.room] -= arena.number
        self._spare -= arena.room * len(arena.free)


class _Arena:
    def __init__(self, room: int, number: int) -> None:
        self.room, self.number = room, number
        self._memory = mmap.mmap(-1, number * room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # a system without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._whole = np.frombuffer(self._memory, np.uint8)
        self.fresh = [self._whole[start : start + room] for start in range(0, number * room, room)]
        self.free: list[Room] = []  # those that were lent before

    @property
    def is_full(self) -> bool:
        return not (self.free or self.fresh)

    @property
    def is_unused(self) -> bool:
        return len(self.free) + len(self.fresh) == self.number

    def give_back(self) -> int:
        """Let the system have what is free; how many bytes that was."""
        with suppress(AttributeError, OSError):  # a system that does not take it
            for room in self.free:
                self._memory.madvise(mmap.MADV_DONTNEED, room.ctypes.data - self._whole.ctypes.data, self.room)
            self.fresh += self.free
            self.free, gone = [], self.room * len(self.free)
            return gone
        return 0


MEMORY = Memory()  # of the process, as malloc's is


def sweep() -> None:
    """Collect reference cycles, and return free memory."""
    gc.collect()
    MEMORY.trim()

"""Memory for payloads and sums, which is reused as soon as nothing refers to it any more.

Fresh memory costs more than filling it: the system clears it page by page when it is first touched.

Rules:
- A buffer is free when the last view of it is gone. Nobody gives it back explicitly, so nobody can forget to.
- Buffers of one size are cut from arenas, for which huge pages are requested: 512 times fewer page faults.
- The first arena of a size is one buffer, and each new one is as large as all before it, up to ARENA: so many sizes
  make us hold at most twice the memory in use.
- Free memory is kept for the next round: with the memory in use, up to the most bytes that were in use since `trim`, or
  KEPT if that is more. Beyond that, wholly unused arenas go back to the system; beyond twice that, free buffers of the
  others do, too. (Huge pages are touched as a whole: one more for each size.)
- A view may be dropped anywhere, also by the garbage collector in the middle of this code: no lock is waited for then.

All of it may be used from any thread.
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

ARENA = 16 << 20  # bytes of an arena at most; one of larger buffers has a single buffer
KEPT = 64 << 20  # bytes, lent or free

Buffer = npt.NDArray[np.uint8]


class Memory:
    """Arenas, by the size of the buffers in them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._spare, self._lent, self._most_lent = 0, 0, 0
        self._buffers: dict[int, int] = defaultdict(int)  # their number by size, lent or free
        self._with_free: dict[int, list[_Arena]] = defaultdict(list)  # arenas with a free buffer, by buffer size
        self._unused: dict[_Arena, None] = {}  # those of which nothing is lent, the longest unused first
        self._returned: SimpleQueue[tuple[_Arena, Buffer]] = SimpleQueue()
        self._lock = threading.Lock()

    @property
    def spare(self) -> int:
        """Free bytes that were lent before; untouched memory is not counted, as it costs nothing."""
        return self._spare

    def lend(self, size: int, on_free: Callable[[], None] = lambda: None) -> memoryview:
        """A buffer of `size` bytes, not cleared. `on_free` is called once it is free, and must not wait."""
        with self._lock:
            self._take_back()
            arena, buffer = self._take(payload_memory(size))
        view = np.frombuffer(buffer.data, np.uint8)  # collected after all users of the buffer
        weakref.finalize(view, self._free, arena, buffer, on_free).atexit = False
        return view.data[:size]

    def trim(self) -> None:
        """Return memory beyond what is in use now, or KEPT, to the system."""
        with self._lock:
            self._take_back()
            self._most_lent = self._lent
            self._release(max(self._kept, self._lent))

    def _free(self, arena: _Arena, buffer: Buffer, on_free: Callable[[], None]) -> None:
        self._returned.put((arena, buffer))
        if self._lock.acquire(blocking=False):  # else the next `lend` takes it back
            try:
                self._take_back()
            finally:
                self._lock.release()
        on_free()

    def _take_back(self) -> None:
        with suppress(Empty):
            while True:
                self._put(*self._returned.get_nowait())

    def _take(self, size: int) -> tuple[_Arena, Buffer]:
        arenas = self._with_free[size]
        if not arenas:
            arenas.append(_Arena(size, max(1, min(ARENA // size, self._buffers[size]))))
            self._buffers[size] += arenas[-1].number
        arena = arenas[-1]
        self._unused.pop(arena, None)
        self._spare -= size if arena.free else 0
        self._lent += size
        self._most_lent = max(self._most_lent, self._lent)
        buffer = (arena.free or arena.fresh).pop()
        if arena.is_full:
            arenas.pop()
        self._release(max(self._kept, self._most_lent))
        return arena, buffer

    def _put(self, arena: _Arena, buffer: Buffer) -> None:
        if arena.is_full:
            self._with_free[len(buffer)].append(arena)
        arena.free.append(buffer)
        self._spare, self._lent = self._spare + len(buffer), self._lent - len(buffer)
        if arena.is_unused:
            self._unused[arena] = None
        self._release(max(self._kept, self._most_lent))

    def _release(self, kept: int) -> None:
        while self._unused and self._spare + self._lent > kept:
            self._drop(next(iter(self._unused)))
        if self._spare + self._lent > 2 * kept:
            self._empty(2 * kept - self._lent)

    def _empty(self, spare: int) -> None:
        """Return free buffers until at most `spare` bytes are free, if the system can take them."""
        for arena in [arena for arenas in self._with_free.values() for arena in arenas]:
            if self._spare <= spare:
                break
            self._spare -= arena.release_free()

    def _drop(self, arena: _Arena) -> None:
        del self._unused[arena]
        self._with_free[arena.buffer_size].remove(arena)
        self._buffers[arena.buffer_size] -= arena.number
        self._spare -= arena.buffer_size * len(arena.free)


class _Arena:
    def __init__(self, buffer_size: int, number: int) -> None:
        self.buffer_size, self.number = buffer_size, number
        self._memory = mmap.mmap(-1, number * buffer_size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # a system without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._whole = np.frombuffer(self._memory, np.uint8)
        self.fresh = [self._whole[start : start + buffer_size] for start in range(0, number * buffer_size, buffer_size)]
        self.free: list[Buffer] = []  # those lent before; `fresh` are the others

    @property
    def is_full(self) -> bool:
        return not (self.free or self.fresh)

    @property
    def is_unused(self) -> bool:
        return len(self.free) + len(self.fresh) == self.number

    def release_free(self) -> int:
        """Return the free buffers to the system; the number of bytes that it took."""
        with suppress(AttributeError, OSError):  # a system that does not take it
            for buffer in self.free:
                self._memory.madvise(mmap.MADV_DONTNEED, buffer.ctypes.data - self._whole.ctypes.data, self.buffer_size)
            self.fresh += self.free
            self.free, gone = [], self.buffer_size * len(self.free)
            return gone
        return 0


MEMORY = Memory()  # one for the process, like malloc's


def release_memory() -> None:
    """Collect reference cycles, and return free memory."""
    gc.collect()
    MEMORY.trim()

"""Memory for payloads that come: used again as soon as nobody holds a payload any more.

Rules:
- A slot is free when the last view of it is gone: nobody gives it back by hand, and so nobody can forget to.
- A tenant (a peer's flow) may hold so many bytes; beyond that it waits until some are free. One slot it always gets.
- Fresh memory costs more than to fill it: freed slots are kept, up to SPARE bytes.

For any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SPARE = 64 << 20  # bytes that are kept free
ROUND = 1 << 16  # bytes: sizes are rounded up to this, so that one slot serves another codec, too

Room = npt.NDArray[np.uint8]


class _Slot(Room):
    """The memory as it is lent: a weak reference can tell when it goes."""


class Slots:
    """All of one node."""

    def __init__(self, spare: int = SPARE) -> None:
        self._most_spare, self._spare = spare, 0
        self._free: dict[int, list[Room]] = defaultdict(list)
        self._lock = threading.RLock()  # a slot may be freed by the garbage collector, in the midst of our own lines

    def take(self, size: int, tenant: Tenant, is_wanted: Callable[[], bool]) -> memoryview | None:
        """Room for so many bytes, once `tenant` may hold them; None once it `is_wanted` no more (see Tenant.wake)."""
        return self._lend(size, tenant) if tenant.wait_for(size, is_wanted) else None

    def lend(self, size: int, tenant: Tenant) -> memoryview:
        """Room for so many bytes, at once: for who has looked before whether `tenant` is full."""
        tenant.hold(size)
        return self._lend(size, tenant)

    def _lend(self, size: int, tenant: Tenant) -> memoryview:
        rounded = -(-size // ROUND) * ROUND
        with self._lock:
            spare = self._free[rounded]
            room = spare.pop() if spare else None
            self._spare -= rounded if room is not None else 0
        if room is None:
            room = np.empty(rounded, np.uint8)
        slot = room.view(_Slot)
        weakref.finalize(slot, self._give_back, room, tenant, size).atexit = False
        return slot.data[:size]

    def _give_back(self, room: Room, tenant: Tenant, size: int) -> None:
        with self._lock:
            if self._spare + len(room) <= self._most_spare:
                self._free[len(room)].append(room)
                self._spare += len(room)
        tenant.gave_back(size)


class Tenant:
    """Who holds slots, and how many bytes at most; None: as many as it likes."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._held = 0
        self._has_changed = threading.Condition(threading.RLock())

    @property
    def held(self) -> int:
        """Bytes."""
        return self._held

    @property
    def is_full(self) -> bool:
        """Whether it should not get more now."""
        return self._most is not None and self._held >= self._most

    def hold(self, size: int) -> None:
        """So many bytes more."""
        with self._has_changed:
            self._held += size

    def wait_for(self, size: int, is_wanted: Callable[[], bool]) -> bool:
        """Hold so many bytes more, as soon as that is allowed; False once they are not wanted any more."""
        with self._has_changed:
            while is_wanted():
                if not self._held or self._most is None or self._held + size <= self._most:
                    self._held += size
                    return True
                self._has_changed.wait()
        return False

    def gave_back(self, size: int) -> None:
        """So many bytes fewer."""
        with self._has_changed:
            self._held -= size
            self._has_changed.notify_all()

    def wake(self) -> None:
        """Have all who wait look whether they still want more."""
        with self._has_changed:
            self._has_changed.notify_all()

"""Buffers on loan: reused once nobody looks at them any more, returned to the system when there are too many."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.protocol.base.wire import MEMORY_UNIT, payload_memory
from shoal.protocol.tensors.memory import ARENA, Memory

MIB = 1 << 20
PAGES = Path("/proc/self/pagemap")


def place(view: memoryview) -> int:
    """Where the memory is."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_room_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    memory = Memory()
    view = memory.lend(MIB)
    first, part = place(view), view[100:200]
    del view
    assert place(memory.lend(MIB)) != first, "a part of it is still in use"
    del part
    again = memory.lend(MIB - MEMORY_UNIT + 1)
    assert place(again) == first
    assert len(again) == MIB - MEMORY_UNIT + 1


WAYS: dict[str, Callable[[memoryview], Any]] = {
    "a part": lambda view: view[10:20],
    "frombuffer": lambda view: np.frombuffer(view, np.uint8)[5:],
    "asarray": lambda view: np.asarray(view)[5:],
    "ndarray": lambda view: np.ndarray((7,), np.uint8, buffer=view)[1:],
    "its own array": lambda view: np.asarray(view.obj)[1:],
    "torch": lambda view: torch.frombuffer(view, dtype=torch.uint8)[3:],
    "torch and back": lambda view: torch.frombuffer(view, dtype=torch.uint8)[3:].numpy()[2:],
    "read only": lambda view: view.toreadonly()[1:],
    "other numbers": lambda view: view.cast("f"),
}


@pytest.mark.parametrize("way", WAYS)
def test_room_is_not_lent_again_while_anybody_looks_at_it(way: str) -> None:
    memory = Memory()
    view = memory.lend(MIB)
    look, first = WAYS[way](view), place(view)
    del view
    gc.collect()
    assert place(memory.lend(MIB)) != first
    del look
    gc.collect()
    assert place(memory.lend(MIB)) == first


def test_a_system_without_huge_pages_has_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)
    assert len(Memory().lend(MIB)) == MIB


def test_a_thousand_rooms_one_after_the_other_are_one() -> None:
    memory = Memory()
    assert len({place(memory.lend(MIB - number)) for number in range(0, MEMORY_UNIT, 64)}) == 1


def test_rooms_do_not_overlap() -> None:
    memory = Memory()
    views = [memory.lend(size) for size in (MIB, 3 * MIB, 100, MIB, ARENA + 1, 0, MIB)]
    places = sorted((place(view), len(view)) for view in views if len(view))
    assert all(start + size <= after for (start, size), (after, _) in pairwise(places))


def test_what_a_round_leaves_is_kept_for_the_next_one_and_no_more() -> None:
    memory = Memory(kept=0)
    held = [memory.lend(MIB) for _ in range(3 * ARENA // MIB)]
    held.clear()
    assert memory.spare == 3 * ARENA
    held = [memory.lend(2 * MIB) for _ in range(2 * ARENA // (2 * MIB))]
    assert memory.spare == ARENA, "rooms of another size come from arenas of their own, and those must go"
    held.clear()
    assert memory.spare == 3 * ARENA


def test_who_needs_no_more_leaves_as_much_as_is_to_be_kept() -> None:
    memory = Memory(kept=2 * ARENA)
    held = [memory.lend(MIB) for _ in range(5 * ARENA // MIB)]
    memory.trim()
    assert memory.spare == 0
    held.clear()
    assert memory.spare == 5 * ARENA
    memory.trim()
    assert memory.spare == 2 * ARENA


def test_an_arena_of_which_something_is_lent_stays_whole() -> None:
    memory = Memory(kept=4 * MIB)
    held = [memory.lend(MIB) for _ in range(16)]  # the last arena is of eight
    del held[:-1]
    memory.trim()
    assert memory.spare == 7 * MIB
    held += [memory.lend(MIB) for _ in range(7)]
    assert memory.spare == 0
    held.clear()
    memory.trim()
    assert memory.spare == 0


class Mapped:
    """Bytes that were asked of the system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        real = mmap.mmap

        def note(file: int, size: int, flags: int) -> mmap.mmap:
            self.sizes.append(size)
            return real(file, size, flags)

        monkeypatch.setattr(mmap, "mmap", note)


def test_one_room_of_each_of_many_sizes_takes_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, mapped = Memory(), Mapped(monkeypatch)
    held = [memory.lend(count * MEMORY_UNIT) for count in range(1, 33)]
    assert mapped.sizes == [len(view) for view in held]


@pytest.mark.parametrize("size", [MEMORY_UNIT, MIB, 3 * MIB, ARENA // 2 + 1, ARENA, 2 * ARENA])
def test_rooms_of_one_size_take_twice_their_bytes_at_most_and_few_arenas(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, mapped, held = Memory(), Mapped(monkeypatch), list[memoryview]()
    while len(held) * size < 5 * ARENA:
        held.append(memory.lend(size))
        assert sum(mapped.sizes) <= 2 * len(held) * payload_memory(size)
    assert max(mapped.sizes) <= max(ARENA, payload_memory(size))
    each = payload_memory(size)
    assert len(mapped.sizes) <= 5 + (ARENA // each).bit_length() + len(held) * each // ARENA


def test_of_arenas_that_stay_the_free_rooms_go_when_they_are_too_much() -> None:
    """Whoever leaves one room in each arena, size after size, makes us hold twice of what was lent at the most."""
    memory, kept, most = Memory(kept=0), list[memoryview](), 0
    for count in range(1, 31):
        size, views = count * MEMORY_UNIT, list[memoryview]()
        while sum(map(len, kept)) + (len(views) + 1) * size <= 32 * MIB:
            views.append(memory.lend(size))
            views[-1][:] = bytes([count]) * size
        most = max(most, sum(map(len, kept + views)))
        kept.append(views[-1])
        views.clear()
        assert memory.spare + sum(map(len, kept)) <= 2 * most
    assert all(bytes(view) == bytes([count]) * len(view) for count, view in enumerate(kept, 1))
    memory.trim()
    assert memory.spare <= sum(map(len, kept))
    again = [memory.lend(len(view)) for view in kept]
    places = sorted((place(view), len(view)) for view in kept + again)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(places))


@pytest.mark.skipif(not PAGES.exists(), reason="asks Linux which pages there are")
def test_rooms_that_went_are_no_pages_any_more() -> None:
    memory = Memory(kept=0)
    held = [memory.lend(MIB) for _ in range(16)]  # the last arena is of eight
    for view in held:
        view[:] = b"x" * MIB
    last, eight = held[-1], min(place(view) for view in held[8:])
    assert resident(eight, 8 * MIB) == 8 * MIB
    del held, view
    memory.trim()
    assert memory.spare == 0, "it was more than twice what is lent"
    assert resident(eight, 8 * MIB) <= 2 * MIB
    assert bytes(last) == b"x" * MIB


def resident(start: int, size: int) -> int:
    """Bytes that are there, of so many. (A mapping may be one with its neighbours: smaps would count those, too.)"""
    page = mmap.PAGESIZE
    with PAGES.open("rb", buffering=0) as pages:
        pages.seek(start // page * 8)
        entries = np.frombuffer(pages.read(size // page * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * page


def test_a_system_that_takes_no_pages_back_leaves_them_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_DONTNEED", 9999, raising=False)
    memory = Memory(kept=0)
    held = [memory.lend(MIB) for _ in range(8)]
    del held[:-1]
    memory.trim()
    assert memory.spare == 3 * MIB, "the rest of an arena of four"


def test_who_lent_it_hears_when_it_is_free() -> None:
    memory, heard = Memory(), list[int]()
    view = memory.lend(MIB, lambda: heard.append(memory.spare))
    assert heard == []
    del view
    assert heard == [MIB]


def test_what_the_garbage_collector_finds_in_the_midst_of_lending_is_used_again() -> None:
    memory = Memory()
    for _ in range(5):
        circle: list[Any] = [memory.lend(MIB)]
        circle.append(circle)
        del circle
        with memory._lock:  # as if it were found while somebody else is served
            gc.collect()
    assert memory.lend(MIB) is not None
    assert memory.spare == MIB


def test_threads_share_it() -> None:
    memory, wrong = Memory(), list[int]()

    def use(mark: int) -> None:
        for number in range(200):
            view = memory.lend(1000 + number)
            view[:] = bytes([mark]) * len(view)
            if bytes(view) != bytes([mark]) * len(view):
                wrong.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert memory.spare <= 16 * MEMORY_UNIT

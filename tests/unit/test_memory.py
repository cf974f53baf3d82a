"""Memory that is lent: used again when nobody looks any more, given back to the system when it is too much."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from shoal.protocol.memory import ARENA, ROUND, Memory

MIB = 1 << 20


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
    again = memory.lend(MIB - ROUND + 1)
    assert place(again) == first
    assert len(again) == MIB - ROUND + 1


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
    assert len({place(memory.lend(MIB - number)) for number in range(0, ROUND, 64)}) == 1


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
    assert memory.spare == 3 * ARENA, "rooms of another size come from arenas of their own"
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
    memory = Memory(kept=0)
    held = [memory.lend(MIB) for _ in range(ARENA // MIB)]
    del held[1:]
    memory.trim()
    assert memory.spare == ARENA - MIB
    held += [memory.lend(MIB) for _ in range(ARENA // MIB - 1)]
    assert memory.spare == 0
    held.clear()
    memory.trim()
    assert memory.spare == 0


def test_who_lent_it_hears_when_it_is_free() -> None:
    memory, heard = Memory(), list[int]()
    view = memory.lend(MIB, lambda: heard.append(memory.spare))
    assert heard == []
    del view
    assert heard == [ARENA]


def test_what_the_garbage_collector_finds_in_the_midst_of_lending_is_used_again() -> None:
    memory = Memory()
    for _ in range(100):
        circle: list[Any] = [memory.lend(MIB)]
        circle.append(circle)
        del circle
        with memory._lock:  # as if it were found while somebody else is served
            gc.collect()
    assert memory.lend(MIB) is not None
    assert memory.spare == ARENA


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
    assert memory.spare <= ARENA

"""Slots: used again when nobody looks any more, within what a tenant may hold."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch

from shoal.protocol.bulk.slots import ROUND, Slots, Tenant
from tests.unit.bulk.kit import in_thread

MIB = 1 << 20


def always() -> bool:
    return True


def place(view: memoryview) -> int:
    """Where the memory is."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_slot_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    slots, tenant = Slots(), Tenant(None)
    view = slots.take(MIB, tenant, always)
    assert view is not None
    first, part = place(view), view[100:200]
    del view
    other = slots.lend(MIB, tenant)
    assert place(other) != first, "a part of it is still in use"
    assert tenant.held == 2 * MIB
    del part
    again = slots.lend(MIB - ROUND + 1, tenant)
    assert place(again) == first
    assert (len(again), tenant.held) == (MIB - ROUND + 1, 2 * MIB - ROUND + 1)


def test_what_is_held_in_a_tensor_is_held() -> None:
    slots, tenant = Slots(), Tenant(None)
    tensor: Any = torch.frombuffer(slots.lend(MIB, tenant), dtype=torch.float32)
    half = tensor[1000:]
    del tensor
    assert tenant.held == MIB
    del half
    gc.collect()
    assert tenant.held == 0


def test_an_empty_payload_has_a_place() -> None:
    slots, tenant = Slots(), Tenant(10)
    view = slots.take(0, tenant, always)
    assert view is not None
    assert len(view) == 0


def test_no_more_is_kept_than_is_to_be() -> None:
    slots, tenant = Slots(spare=2 * MIB), Tenant(None)
    held = [slots.lend(MIB, tenant) for _ in range(5)]
    held.clear()
    assert tenant.held == 0
    assert sum(len(room) for spare in slots._free.values() for room in spare) == slots._spare == 2 * MIB


def test_a_thousand_slots_one_after_the_other_are_one() -> None:
    slots, tenant = Slots(), Tenant(4 * MIB)
    places = set[int]()
    for number in range(1000):
        view = slots.take(MIB - number, tenant, always)
        assert view is not None
        places.add(place(view))
        del view
    assert len(places) == 1
    assert tenant.held == 0


def test_who_holds_enough_waits_until_something_is_given_back() -> None:
    slots, tenant, got = Slots(), Tenant(2 * MIB), list[memoryview | None]()
    held = [slots.lend(MIB, tenant), slots.lend(MIB, tenant)]
    assert tenant.is_full
    thread = in_thread(lambda: got.append(slots.take(MIB, tenant, always)))
    thread.join(0.05)
    assert thread.is_alive()
    held.pop()
    thread.join(20)
    assert len(got) == 1
    assert tenant.held == 2 * MIB


def test_who_waits_goes_away_without_when_nothing_is_wanted_any_more() -> None:
    slots, tenant, got, wanted = Slots(), Tenant(MIB), list[memoryview | None](), [True]
    held = slots.lend(MIB, tenant)
    thread = in_thread(lambda: got.append(slots.take(MIB, tenant, lambda: wanted[0])))
    wanted[0] = False
    tenant.wake()
    thread.join(20)
    assert got == [None]
    assert tenant.held == len(held)


def test_one_slot_everybody_gets_however_large() -> None:
    slots, tenant = Slots(), Tenant(MIB)
    assert slots.take(8 * MIB, tenant, always) is not None


def test_tenants_do_not_wait_for_each_other() -> None:
    slots, full, free = Slots(), Tenant(MIB), Tenant(MIB)
    held = slots.lend(MIB, full)
    assert slots.take(MIB, free, always) is not None
    assert len(held) == MIB

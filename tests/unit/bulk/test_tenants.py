"""Tenants: each waits for itself, until it holds less than it may."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch

from shoal.protocol.bulk.tenants import Tenant
from shoal.protocol.memory import MEMORY, ROUND
from tests.unit.bulk.kit import in_thread

MIB = 1 << 20


def always() -> bool:
    return True


def someone_waits(tenant: Tenant, number: int = 1) -> None:
    deadline = time.monotonic() + 20
    while len(tenant._waiting) < number:
        assert time.monotonic() < deadline


def test_what_is_held_in_a_tensor_is_held() -> None:
    tenant = Tenant(None)
    tensor: Any = torch.frombuffer(tenant.lend(MIB), dtype=torch.float32)
    half = tensor[1000:]
    del tensor
    assert tenant.held == MIB
    del half
    gc.collect()
    assert tenant.held == 0


def test_what_is_held_in_a_circle_is_given_back_when_it_is_found() -> None:
    tenant = Tenant(MIB)
    circle: list[Any] = [tenant.lend(MIB)]
    circle.append(circle)
    del circle
    gc.collect()
    assert tenant.take(MIB, always) is not None


def test_an_empty_payload_has_a_place() -> None:
    view = Tenant(10).take(0, always)
    assert view is not None
    assert len(view) == 0


def test_who_holds_enough_waits_until_something_is_given_back() -> None:
    tenant, got = Tenant(2 * MIB), list[memoryview | None]()
    held = [tenant.lend(MIB), tenant.lend(MIB)]
    assert tenant.is_full
    thread = in_thread(lambda: got.append(tenant.take(MIB, always)))
    thread.join(0.05)
    assert thread.is_alive()
    held.pop()
    thread.join(20)
    assert len(got) == 1
    assert tenant.held == 2 * MIB


def test_room_for_two_serves_two_who_wait() -> None:
    tenant, got = Tenant(2 * MIB), list[memoryview | None]()
    held = [tenant.lend(2 * MIB)]
    threads = [in_thread(lambda: got.append(tenant.take(MIB, always))) for _ in range(2)]
    held.clear()
    for thread in threads:
        thread.join(20)
    assert len(got) == 2
    assert tenant.is_full


def test_who_waits_goes_away_without_when_nothing_is_wanted_any_more() -> None:
    tenant, got, wanted = Tenant(MIB), list[memoryview | None](), [True]
    held = tenant.lend(MIB)
    thread = in_thread(lambda: got.append(tenant.take(MIB, lambda: wanted[0])))
    someone_waits(tenant)
    wanted[0] = False
    tenant.wake()
    thread.join(20)
    assert got == [None]
    assert tenant.held == len(held)


def test_who_only_looks_takes_nobodys_turn() -> None:
    """Whoever asks how much is held settles what was given back, and who waits for it hears of it all the same."""
    for _ in range(40):
        tenant, got = Tenant(MIB), list[memoryview | None]()
        held = [tenant.lend(MIB)]
        thread = in_thread(lambda tenant=tenant, got=got: got.append(tenant.take(MIB, always)))  # type: ignore[misc]
        someone_waits(tenant)
        held.clear()
        assert tenant.held in (0, MIB)
        thread.join(20)
        assert len(got) == 1


def test_what_one_cannot_use_another_can() -> None:
    tenant, got = Tenant(2 * MIB), list[memoryview | None]()
    held = [tenant.lend(MIB), tenant.lend(MIB // 2), tenant.lend(MIB // 2)]
    wanted = [True]
    large = in_thread(lambda: got.append(tenant.take(2 * MIB, lambda: wanted[0])))
    someone_waits(tenant)
    small = in_thread(lambda: got.append(tenant.take(MIB // 2, always)))
    someone_waits(tenant, 2)
    held.pop()
    small.join(20)
    assert [len(each) for each in got if each is not None] == [MIB // 2]
    wanted[0] = False
    tenant.wake()
    large.join(20)
    assert None in got


def test_room_that_is_not_to_be_had_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int, gave_back: object) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(MEMORY, "lend", none)
    tenant = Tenant(MIB)
    with pytest.raises(MemoryError):
        tenant.take(MIB, always)
    assert tenant.held == 0


def test_small_payloads_count_as_the_room_they_take() -> None:
    tenant = Tenant(MIB)
    held = [tenant.lend(1) for _ in range(16)]
    assert (tenant.held, tenant.is_full) == (16 * ROUND, True)
    held.clear()
    assert tenant.held == 0


def test_one_payload_everybody_gets_room_for_however_large() -> None:
    assert Tenant(MIB).take(8 * MIB, always) is not None


def test_tenants_do_not_wait_for_each_other() -> None:
    full, free = Tenant(MIB), Tenant(MIB)
    held = full.lend(MIB)
    assert free.take(MIB, always) is not None
    assert len(held) == MIB

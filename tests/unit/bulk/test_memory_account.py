"""Tenants: what is held counts until nobody looks at it any more."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from shoal.protocol.base.wire import MEMORY_UNIT
from shoal.protocol.net.bulk.flow_control import MemoryAccount
from shoal.protocol.tensors.memory import MEMORY

MIB = 1 << 20


def test_what_is_held_in_a_tensor_is_held() -> None:
    memory = MemoryAccount()
    tensor: Any = torch.frombuffer(memory.lend(MIB), dtype=torch.float32)
    half = tensor[1000:]
    del tensor
    assert memory.held == MIB
    del half
    gc.collect()
    assert memory.held == 0


def test_what_is_held_in_a_circle_is_given_back_when_it_is_found_and_that_is_told() -> None:
    told = list[int]()
    memory = MemoryAccount(lambda: told.append(1))
    circle: list[Any] = [memory.lend(MIB)]
    circle.append(circle)
    del circle
    assert not told
    gc.collect()
    assert (memory.held, told) == (0, [1])


def test_small_payloads_count_with_the_room_that_they_take() -> None:
    memory = MemoryAccount()
    held = [memory.lend(1) for _ in range(10)]
    assert memory.held == 10 * MEMORY_UNIT
    held.clear()
    assert memory.held == 0


def test_an_empty_payload_has_a_place() -> None:
    assert len(MemoryAccount().lend(0)) == 0


def test_memory_that_is_not_to_be_had_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int, gave_back: object) -> memoryview:
        raise MemoryError

    memory = MemoryAccount()
    monkeypatch.setattr(MEMORY, "lend", none)
    with pytest.raises(MemoryError):
        memory.lend(MIB)
    assert memory.held == 0

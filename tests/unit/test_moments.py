"""The inner optimizer's state goes through a flat vector and back to the bit; a torn one is never used."""

from __future__ import annotations

import pytest
import torch

from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.node.ipc.vectors import copy_whole, moments_size
from shoal.node.training.trainer.inner import InnerTrainer
from tests.unit.test_inner import trainer, weights


def stored(each: InnerTrainer) -> torch.Tensor:
    vector = torch.zeros(moments_size(each.layout.size))
    each.store(vector)
    return vector


def test_a_successor_goes_on_as_if_nothing_had_happened() -> None:
    first, second, forgetful = trainer(), trainer(), trainer()
    first.train(1, [0])
    vector, theta = stored(first), weights(first)
    assert vector[0] == 5
    second.restore(vector)
    for each in (first, second, forgetful):
        each.load(theta)
        each.train(2, [3])
    assert torch.equal(weights(first), weights(second))
    assert torch.equal(stored(first), stored(second))
    assert not torch.equal(weights(first), weights(forgetful))


def test_nothing_trained_is_nothing_to_restore() -> None:
    fresh = trainer()
    vector = stored(fresh)
    assert not vector.any()
    fresh.restore(vector)
    assert not fresh.optimizers[0].state


def shared(numbers: list[float]) -> SharedVector:
    vector = SharedVector.create(len(numbers))
    vector.array[:] = numbers
    return vector


def test_a_worker_that_died_while_it_wrote_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedVector, "copied", None)  # there is nothing to copy
    with shared([0, 1, 2]) as torn:
        assert copy_whole(torn) is None  # its count of steps is 0: the rest is of no round


def test_a_copy_is_whole_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared([1, 2, 3]) as whole:
        copied = copy_whole(whole)
        assert copied is not None
        whole.array[1] = 7
        assert copied.tolist() == [1, 2, 3]

        def overtaken(self: SharedVector) -> FloatArray:
            """A worker writes while it is copied."""
            before = self.array.copy()
            self.array[0] += 1
            return before

        monkeypatch.setattr(SharedVector, "copied", overtaken)
        assert copy_whole(whole) is None

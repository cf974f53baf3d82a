"""The inner optimizer's state goes through a flat vector and back to the bit; a torn one is never taken for whole."""

from __future__ import annotations

import numpy as np
import torch

from shoal.node.inner import InnerTrainer
from shoal.node.moments import copy_whole, moments_size
from shoal.node.shm import FloatArray
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
    assert not fresh.optimizer.state


def test_a_worker_that_died_while_it_wrote_leaves_nothing() -> None:
    torn: FloatArray = np.arange(7, dtype=np.float32)
    assert copy_whole(torn) is None  # its count of steps is 0: the rest is of no round


class Overtaken(np.ndarray):  # type: ignore[type-arg]
    """A shared vector into which a worker writes while it is copied."""

    def copy(self, order: str = "K") -> FloatArray:  # type: ignore[override]
        copied = np.array(self, dtype=np.float32)
        self[0] += 1
        return copied


def test_a_copy_is_whole_or_none() -> None:
    whole: FloatArray = np.ones(7, dtype=np.float32)
    copied = copy_whole(whole)
    assert copied is not None
    assert copied is not whole
    assert copied.tolist() == whole.tolist()
    assert copy_whole(whole.view(Overtaken)) is None

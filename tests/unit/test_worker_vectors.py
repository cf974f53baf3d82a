"""The vectors that a daemon shares with its worker: as long as the method needs, each written by its owner only."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.node.ipc.vectors import SharedVectors, Sizes
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.registry import METHODS
from shoal.node.training.models.decoder import skeleton
from shoal.node.training.models.layout import Layout
from shoal.node.training.state.outer import OuterState
from shoal.protocol.base.errors import LocalError

MODEL = ModelSpec(dim=16, layers=2, heads=2, kv_heads=1, hidden=16, context=16)
D = Layout.of(skeleton(MODEL)).size
NUMBERS = {  # agreed, contribution, moments, loaded, answer
    "ddp": (D, D, 1 + 2 * D, 1),
    "diloco": (D, D, 1 + 2 * D, 1),
    "diloco-delayed": (D, D, 1 + 2 * D, 1),
    "diloco-eager": (2 * D, D, 1 + 2 * D, 1, D),
    "co2": (D, D, 1 + 2 * D, 1),
    "streaming-diloco": (D, D, 1 + 2 * D, 1),
    "sparseloco": (D, D, 1 + 3 * D, 1),
    "noloco": (D, D, 1 + 2 * D, 1),
    "gossip": (D, D, 1 + 2 * D, 1),
}


@pytest.fixture
def ours() -> Iterator[SharedVectors]:
    made = SharedVectors.create(Sizes(5, agreed=2, private=1, answers=1))
    yield made
    made.close()


@pytest.mark.parametrize("name", METHODS)
def test_they_are_as_long_as_the_method_needs(name: str) -> None:
    manifest = Manifest(name="a", model=MODEL, method=MethodSpec(name=name))  # type: ignore[arg-type]
    assert OuterState(manifest).sizes.numbers == NUMBERS[name]


def test_the_other_process_sees_what_is_written_and_writes_what_is_its_own(ours: SharedVectors) -> None:
    theirs = SharedVectors.attach([os.dup(each) for each in ours.descriptors], Sizes(5, 2, 1, 1))
    assert ours.answer is not None
    assert theirs.answer is not None
    ours.agreed.array[:] = np.arange(10)
    ours.answer.array[:] = 3
    theirs.contribution.array[:] = 7
    theirs.moments.array[-1] = 9
    assert theirs.agreed.array.tolist() == list(range(10))
    assert theirs.answer.array.tolist() == [3] * 5
    assert ours.contribution.array.tolist() == [7] * 5
    assert ours.moments.array[-1] == 9
    for read_only in (theirs.agreed, theirs.loaded, theirs.answer):
        with pytest.raises(ValueError, match="read-only"):
            read_only.array[0] = 1
    theirs.close()
    assert ours.contribution.array[0] == 7


def test_there_is_no_answer_where_none_is_shown() -> None:
    sizes = Sizes(5)
    ours = SharedVectors.create(sizes)
    assert ours.answer is None
    assert [len(each.array) for each in (ours.agreed, ours.contribution, ours.moments)] == [5, 5, 11]
    theirs = SharedVectors.attach([os.dup(each) for each in ours.descriptors], sizes)
    assert theirs.answer is None
    ours.close()
    theirs.close()


def test_others_than_were_agreed_are_refused_and_stay_the_callers(ours: SharedVectors) -> None:
    for sizes in (Sizes(5, 2, 1, 0), Sizes(6, 2, 1, 1), Sizes(5, 3, 1, 1), Sizes(5, 2, 2, 1)):
        descriptors = [os.dup(each) for each in ours.descriptors]
        with pytest.raises(LocalError):
            SharedVectors.attach(descriptors, sizes)
        for descriptor in descriptors:
            os.fstat(descriptor)
            os.close(descriptor)

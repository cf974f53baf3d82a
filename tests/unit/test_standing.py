"""When a node says SOLO, CONNECTED, IN-ROUND or SPLIT."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.node.standing import is_split, node_state
from shoal.protocol.ids import Digest
from shoal.protocol.messages.status import RunStatus

HERE = RunStatus(7, Digest(bytes(32)), Digest(bytes(32)), "training", 0, 0, None, True, 0, "unknown")
ELSEWHERE = dataclasses.replace(HERE, history=Digest(b"x" * 32))


@pytest.mark.parametrize(
    ("group", "lost", "split"),
    [
        (4, 0, False),
        (4, 1, False),
        (4, 2, True),
        (2, 1, False),
        (3, 1, False),
        (9, 2, False),
        (9, 3, True),
        (32, 10, False),
    ],
)
def test_one_death_is_no_split_but_a_third_of_the_group_is(group: int, lost: int, split: bool) -> None:
    assert is_split(no_quorum=False, group=group, lost=lost, own=HERE, others=[HERE]) is split


def test_no_quorum_and_another_history_are_splits() -> None:
    assert is_split(no_quorum=True, group=4, lost=0, own=HERE, others=[])
    assert is_split(no_quorum=False, group=4, lost=0, own=HERE, others=[HERE, ELSEWHERE])
    older = dataclasses.replace(ELSEWHERE, round=6)
    assert not is_split(no_quorum=False, group=4, lost=0, own=HERE, others=[older])


def test_another_history_in_the_directory_is_a_split() -> None:
    assert is_split(no_quorum=False, group=4, lost=0, own=HERE, others=[HERE], conflict=True)


def test_one_word_for_a_node() -> None:
    assert node_state([], False, False) == "SOLO"
    assert node_state([], False, True) == "CONNECTED"
    assert node_state(["training"], False, True) == "CONNECTED"
    assert node_state(["training", "reducing"], False, True) == "IN-ROUND"
    assert node_state(["training"], True, False) == "SPLIT"

"""When a node says SOLO, CONNECTED, IN-ROUND or SPLIT, and on what evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shoal.node.run.node_state import SplitEvidence, node_state, why_split
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.membership import RunStatus

HERE = RunStatus(7, Digest(bytes(32)), Digest(bytes(32)), "training", 0, 0, None, True, 0, 0, "unknown")
ELSEWHERE = dataclasses.replace(HERE, history=Digest(b"x" * 32))
PEERS = [PeerId(f"12D3KooWpeer{number:02}") for number in range(32)]
WELL = SplitEvidence(4, (), (), True, 4, (), (), (), HERE, [(PEERS[0], HERE)])


def why(**changes: Any) -> str:
    return why_split(dataclasses.replace(WELL, **changes))


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
    assert bool(why(group=group, lost=PEERS[:lost])) is split


def test_what_is_lost_stands_there_by_name_with_what_the_directory_says() -> None:
    lost = "2 of the last 6 members are lost without a goodbye (peer01, peer02)"
    assert why(group=6, lost=PEERS[1:3]) == f"{lost}; in the directory none of them has written since"
    seen = why(group=6, lost=PEERS[1:3], elsewhere=PEERS[2:3])
    assert seen == f"{lost}; in the directory peer02 has written since"
    both = why(group=6, elsewhere=PEERS[1:3])
    assert both == f"{lost}; in the directory peer01, peer02 have written since"


def test_many_are_not_all_named() -> None:
    assert "(peer00, peer01, peer02, peer03, peer04, peer05 and 5 more)" in why(group=32, lost=PEERS[:11])


def test_no_quorum_is_a_split() -> None:
    said = why(voters=2, absent=PEERS[1:2], has_quorum=False)
    assert said == "no quorum, as 1 of 2 voters are absent (peer01)"


def test_no_quorum_is_a_split_also_where_all_are_there() -> None:
    anew = "1 of 2 voters are there without a vote that counts here (peer01)"
    assert why(voters=2, voteless=PEERS[1:2], has_quorum=False) == f"no quorum, as {anew}"
    both = why(voters=3, absent=PEERS[2:3], voteless=PEERS[1:2], has_quorum=False)
    absent = "1 of 3 voters are absent (peer02)"
    assert both == f"no quorum, as {absent} and {anew.replace('of 2', 'of 3')}"
    assert why(voters=2, has_quorum=False) == "no quorum, as it has yielded to another branch of its log"


def test_another_history_is_a_split_by_membership_and_by_the_directory() -> None:
    rival = (PEERS[3], ELSEWHERE)
    assert why(others=[(PEERS[0], HERE), rival]) == "another history of round 7 is that of peer03"
    older = dataclasses.replace(ELSEWHERE, round=6)
    assert not why(others=[(PEERS[3], older)])
    assert why(apart=PEERS[3:4]) == "the directory has another history of a decided round by peer03"


def test_one_word_for_a_node() -> None:
    assert node_state([], False, False) == "SOLO"
    assert node_state([], False, True) == "CONNECTED"
    assert node_state(["training"], False, True) == "CONNECTED"
    assert node_state(["training", "reducing"], False, True) == "IN-ROUND"
    assert node_state(["training"], True, False) == "SPLIT"

"""Quorums: any two of them share a member."""

from __future__ import annotations

from itertools import combinations

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.rounds.agreement.quorum import is_quorum

VOTERS = tuple(PeerId(name) for name in "abcdef")


@pytest.mark.parametrize(
    ("present", "voters", "left", "decides"),
    [
        ("ab", "abc", "", True),
        ("a", "abc", "", False),
        ("ab", "abcd", "", True),  # half, with the first
        ("cd", "abcd", "", False),  # half, without it
        ("bc", "abcd", "d", True),  # two of the three that are left
        ("bc", "abcd", "a", True),
        ("b", "abc", "a", True),  # half of the rest, with its first
        ("c", "abc", "a", False),
        ("axyz", "abc", "", False),  # others do not count
        ("", "", "", False),
        ("a", "a", "a", False),  # nobody is left to decide
        ("a", "a", "", True),
    ],
)
def test_who_decides(present: str, voters: str, left: str, decides: bool) -> None:
    names = [[PeerId(name) for name in group] for group in (present, voters, left)]
    assert is_quorum(*names) is decides


@pytest.mark.parametrize("size", range(1, 7))
def test_two_quorums_always_meet(size: int) -> None:
    voters = VOTERS[:size]
    subsets = [set(group) for count in range(size + 1) for group in combinations(voters, count)]
    quorums = [group for group in subsets if is_quorum(group, voters)]
    assert quorums
    assert all(one & other for one in quorums for other in quorums)
    for group in subsets:  # and whoever is not a quorum cannot decide behind its back
        assert is_quorum(group, voters) != is_quorum(set(voters) - group, voters)

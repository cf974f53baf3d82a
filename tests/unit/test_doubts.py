"""Who was given up is left out of ever more rounds, until it brings something."""

from __future__ import annotations

from shoal.protocol.averaging.doubts import MOST_DOUBLINGS, Doubts
from shoal.protocol.base.ids import PeerId

PEER = PeerId("peer")


def rounds_without(doubts: Doubts, round: int) -> int:
    """How many rounds after this one do without PEER."""
    count = 0
    while doubts.leaves_out(PEER, round + count + 1):
        count += 1
    return count


def test_each_time_it_is_left_out_of_twice_as_many_rounds() -> None:
    doubts, found = Doubts(), []
    for round in range(0, 10_000, 1000):
        doubts.give_up(PEER, round)
        found.append(rounds_without(doubts, round))
    assert found == [2 ** min(times, MOST_DOUBLINGS) for times in range(10)]
    assert not doubts.believes(PEER)


def test_whoever_brings_something_is_as_good_as_before() -> None:
    doubts = Doubts()
    doubts.give_up(PEER, 1)
    doubts.give_up(PEER, 3)
    doubts.trust(PEER)
    assert doubts.believes(PEER)
    assert rounds_without(doubts, 3) == 0
    doubts.give_up(PEER, 5)
    assert rounds_without(doubts, 5) == 1

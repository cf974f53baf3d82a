"""Which members can reach each other, and which are fit to own chunks."""

from __future__ import annotations

from shoal.protocol.averaging.apart import MAX_APART, Standing, Ways, standing, ways_between
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.register import MAX_MEMBERS
from tests.unit.rounds_kit import PEERS, A, B, C, D, offer

FOUR = (*PEERS, D)


def _ways(**apart: tuple[PeerId, ...]) -> Ways:
    return ways_between([offer(peer, apart=apart.get(peer, ())) for peer in FOUR])


def test_the_fittest_are_apart_from_the_fewest() -> None:
    assert _ways().fittest(FOUR, FOUR) == list(FOUR)
    assert _ways(c=(D,)).fittest(FOUR, FOUR) == [A, B]
    assert _ways(a=(B, C, D), b=(C,)).fittest(FOUR, FOUR) == [D]
    assert _ways(a=(B, C, D), b=(C, D), c=(D,)).fittest(FOUR, FOUR) == list(FOUR)
    assert _ways().fittest((), FOUR) == []


def test_who_is_not_here_does_not_count() -> None:
    assert _ways(a=(D,)).fittest(PEERS, PEERS) == list(PEERS)


def test_who_cannot_be_reached_is_fit_only_where_nobody_can_and_stands_in_nobodys_way() -> None:
    ways = ways_between([offer(A, reachable=False), offer(B, apart=(C,)), offer(C)])
    assert ways.fittest(PEERS, PEERS) == [B, C]
    assert ways.fittest([A], PEERS) == [A]
    assert ways.by_relay([B], PEERS) == [C]
    assert ways.by_relay([A], PEERS) == [B, C]


def test_payloads_take_a_relay_between_those_that_are_apart() -> None:
    ways = _ways(c=(D,))
    assert ways.by_relay([A, B], FOUR) == []
    assert ways.by_relay([A, C, C], FOUR) == [D]
    assert ways.by_relay([C, D], FOUR) == [C, D]


def test_who_would_have_to_name_too_many_says_that_it_cannot_be_reached_and_names_the_first() -> None:
    others = [PeerId(f"p{number}") for number in range(MAX_APART + 1)]
    assert standing(others[:-1], 10) == Standing(True, tuple(others[:-1]))
    assert standing(others, 10) == Standing(False, tuple(others[:-1]))
    assert standing([], MAX_MEMBERS) == Standing(True, ())
    assert standing(others, 10 * MAX_MEMBERS) == Standing(False, ())

"""Who reaches whom, and who is fit to own chunks."""

from __future__ import annotations

import random
from itertools import combinations

from shoal.protocol.apart import MAX_APART, Standing, Ways, standing, ways_between
from shoal.protocol.ids import PeerId
from shoal.protocol.roster import MAX_MEMBERS
from shoal.protocol.wire import MAX_CONTROL_FRAME, encode
from tests.unit.rounds_kit import PEERS, A, B, C, D, join, roster

FOUR = (*PEERS, D)
E = PeerId("e")


def _ways(**apart: tuple[PeerId, ...]) -> Ways:
    """As they say."""
    return ways_between([join(peer, A, apart=apart.get(peer, ())) for peer in FOUR])


def _between(*pairs: tuple[PeerId, PeerId]) -> Ways:
    """As both of each pair see it."""
    return _ways(**{peer: tuple(b if a == peer else a for a, b in pairs if peer in (a, b)) for peer in FOUR})


def test_the_fittest_are_apart_from_the_fewest() -> None:
    assert _between().fittest(FOUR, FOUR) == list(FOUR)
    assert _between((C, D)).fittest(FOUR, FOUR) == [A, B]
    assert _between((A, B), (A, C), (A, D), (B, C)).fittest(FOUR, FOUR) == [D]
    assert _between(*combinations(FOUR, 2)).fittest(FOUR, FOUR) == list(FOUR)
    assert _between().fittest((), FOUR) == []


def test_no_single_member_makes_another_own_everything() -> None:
    """C names all but A, its victim."""
    assert _ways(c=(B, D)).fittest(FOUR, FOUR) == [A, B, D]
    five = (*FOUR, E)
    said = {peer: (E,) for peer in (A, B, D)} | {C: (B, D, E), E: (A, B, C, D)}
    ways = ways_between([join(peer, A, apart=said[peer]) for peer in five])
    assert ways.fittest(five, five) == [A, B, D], "one behind a symmetric router, and C, who lies"


def test_nobody_is_fit_who_is_alone_in_thinking_so() -> None:
    """All are behind symmetric routers; D says that it meets everybody."""
    assert _ways(a=(B, C, D), b=(A, C, D), c=(A, B, D)).fittest(FOUR, FOUR) == list(FOUR)


def test_what_one_end_has_not_seen_yet_counts_for_the_other_alone() -> None:
    ways = _ways(c=(D,))
    assert ways.fittest(FOUR, FOUR) == [A, B, D]
    assert ways.nearest(C, [D, A]) == [A, D]
    assert ways.by_relay([D], FOUR) == [C]


def test_who_is_not_here_does_not_count() -> None:
    assert _ways(a=(D,)).fittest(PEERS, PEERS) == list(PEERS)


def test_who_cannot_be_reached_is_fit_only_where_nobody_can_and_stands_in_nobodys_way() -> None:
    ways = ways_between([join(A, A, reachable=False), join(B, A, apart=(C,)), join(C, A, apart=(B,))])
    assert ways.fittest(PEERS, PEERS) == [B, C]
    assert ways.fittest([A], PEERS) == [A]
    assert ways.by_relay([B], PEERS) == [C]
    assert ways.by_relay([A], PEERS) == [B, C]


def test_payloads_take_a_relay_between_those_that_are_apart() -> None:
    ways = _between((C, D))
    assert ways.by_relay([A, B], FOUR) == []
    assert ways.by_relay([A, C, C], FOUR) == [D]
    assert ways.by_relay([C, D], FOUR) == [C, D]


def test_who_would_have_to_name_too_many_says_that_it_cannot_be_reached_and_names_the_first() -> None:
    others = [PeerId(f"p{number}") for number in range(MAX_APART + 1)]
    assert standing(others[:-1], 10) == Standing(True, tuple(others[:-1]))
    assert standing(others, 10) == Standing(False, tuple(others[:-1]))
    assert standing([], MAX_MEMBERS) == Standing(True, ())
    assert standing(others, MAX_MEMBERS) == Standing(False, ())


def test_the_names_in_a_large_roster_leave_room_for_the_rest() -> None:
    """Names as long as real ones; as many members as a run may have, and as many as name most in all."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for members in (128, MAX_MEMBERS):
        others = [PeerId(f"12D3KooW{rng.randrange(10**44):044d}") for _ in range(MAX_APART + 1)]
        said = standing(others, members)
        one = len(encode(roster(joins=(join(A, A, apart=said.apart),))))
        none = len(encode(roster(joins=(join(A, A),))))
        assert members * (one - none) < MAX_CONTROL_FRAME // 8, f"seed {seed}"

"""Shares of chunks, compared with every other division and with the optimum computed in fractions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.averaging.shares import FASTEST, Claim, Load, share

MBIT = 125_000
EQUAL = Claim(50 * MBIT, 50 * MBIT)
RATES = st.sampled_from([0, MBIT, 5 * MBIT, 10 * MBIT, 40 * MBIT, 50 * MBIT, 500 * MBIT, 1 << 62])
CLAIMS = st.lists(st.builds(Claim, RATES, RATES, st.booleans(), st.booleans()), min_size=1, max_size=9)


def seconds(claims: Sequence[Claim], counts: Sequence[int], load: Load) -> Fraction:
    """How long a round takes, from what each line carries; all have been measured."""
    chunks, members = sum(counts), len(claims)
    slowest = Fraction(0)
    for claim, owned in zip(claims, counts, strict=True):
        others = sum(each.contributes for each in claims) - claim.contributes
        sent = load.scatter * (chunks - owned) * claim.contributes + load.gather * owned * (members - 1)
        received = load.gather * (chunks - owned) + load.scatter * owned * others
        slowest = max(slowest, Fraction(sent, claim.up), Fraction(received, claim.down))
    return slowest


def ways_to_share(chunks: int, members: int) -> Iterator[tuple[int, ...]]:
    if members == 1:
        yield (chunks,)
        return
    for first in range(chunks + 1):
        yield from ((first, *rest) for rest in ways_to_share(chunks - first, members - 1))


def test_equal_lines_own_alike() -> None:
    assert share([EQUAL] * 4, Load(16), 64) == [4, 4, 4, 4]
    assert share([EQUAL] * 3, Load(16), 64) == [6, 5, 5]
    assert share([Claim(0, 0)] * 3, Load(3), 64) == [1, 1, 1]


def test_the_example_of_the_docs() -> None:
    slow, fast = Claim(5 * MBIT, 50 * MBIT), Claim(200 * MBIT, 200 * MBIT)
    assert share([EQUAL, EQUAL, EQUAL, slow], Load(15), 64) == [5, 5, 5, 0]
    assert share([EQUAL, EQUAL, EQUAL, fast], Load(16), 64)[3] == 16


@pytest.mark.parametrize(
    "ups", [(50, 50, 50, 5), (50, 40, 30, 20), (10, 20, 80), (50, 50, 50, 200), (7, 7, 30, 31), (100, 60, 33, 90)]
)
@pytest.mark.parametrize(("scatter", "gather"), [(1, 1), (8, 32), (16, 8)])
def test_no_other_way_is_faster(ups: Sequence[int], scatter: int, gather: int) -> None:
    claims = [Claim(up * MBIT, 100 * MBIT) for up in ups]
    load = Load(10, scatter, gather)
    best = min(seconds(claims, counts, load) for counts in ways_to_share(load.chunks, len(claims)))
    assert seconds(claims, share(claims, load, 64), load) == best


def test_noise_moves_no_chunks() -> None:
    claims = [Claim(rate * MBIT, rate * MBIT) for rate in (47, 50, 54, 55)]
    assert share(claims, Load(16), 64) == [4, 4, 4, 4]
    assert share([*claims[:3], Claim(58 * MBIT, 58 * MBIT)], Load(16), 64) != [4, 4, 4, 4]


def test_the_unmeasured_count_as_the_middle() -> None:
    measured = [Claim(50 * MBIT, 50 * MBIT), Claim(10 * MBIT, 50 * MBIT), Claim(50 * MBIT, 50 * MBIT)]
    assert share([*measured, Claim(0, 0)], Load(16), 64) == share([*measured, EQUAL], Load(16), 64)


def test_beyond_the_fastest_all_are_alike() -> None:
    claims = [Claim(FASTEST, FASTEST), Claim(1 << 62, 1 << 62), Claim(8 * FASTEST, FASTEST)]
    assert share(claims, Load(9), 64) == [3, 3, 3]


def test_two_share_alike_whatever_their_lines() -> None:
    assert share([EQUAL, Claim(MBIT, 500 * MBIT)], Load(8), 64) == [4, 4]


def test_owners_are_bounded_and_the_fastest() -> None:
    claims = [Claim(up * MBIT, 100 * MBIT) for up in (20, 50, 10, 50, 30)]
    counts = share(claims, Load(12), 2)
    assert [place for place, count in enumerate(counts) if count] == [1, 3]
    assert sum(counts) == 12


def test_who_may_not_own_does_not() -> None:
    assert share([EQUAL, Claim(FASTEST, FASTEST, may_own=False), EQUAL], Load(8), 64) == [4, 0, 4]


def test_a_liar_owns_all_or_nothing_and_the_round_goes_on() -> None:
    giant, dwarf = Claim(1 << 62, 1 << 62), Claim(1, 1)
    assert sum(share([giant, EQUAL, EQUAL, EQUAL], Load(16), 64)) == 16
    assert share([dwarf, EQUAL, EQUAL, EQUAL], Load(15), 64) == [0, 5, 5, 5]


@given(CLAIMS, st.integers(0, 40), st.integers(1, 9), st.integers(1, 64), st.integers(1, 64))
def test_every_chunk_has_an_owner_that_may_be_one(
    claims: list[Claim], chunks: int, most: int, scatter: int, gather: int
) -> None:
    if not any(claim.may_own for claim in claims):
        return
    counts = share(claims, Load(chunks, scatter, gather), most)
    assert sum(counts) == chunks
    assert sum(count > 0 for count in counts) <= most
    assert all(claim.may_own or not count for claim, count in zip(claims, counts, strict=True))

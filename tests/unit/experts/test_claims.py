"""Which part of a family a peer takes, and when it gives it up."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.node.experts.claims import (
    MOST_KEEPERS,
    Claim,
    Claims,
    Keep,
    Reading,
    Release,
    Take,
    Wait,
    Yield,
    draw,
    keepers,
)
from shoal.protocol.base.ids import PeerId

ME, OTHER = PeerId("me"), PeerId("other")
FAMILY = bytes(32)
LASTS = {"a": 10, "b": 10, "c": 10}
NOTHING = Reading((), {}, {})


def claims() -> Claims:
    return Claims(FAMILY, ME, LASTS)


def taken(part: str, peer: PeerId = OTHER, term: int = 1, published: int = 0) -> Claim:
    return Claim(peer, part, term, published)


def best(parts: str) -> str:
    """Whichever the hash puts first."""
    return min(parts, key=lambda part: draw(FAMILY, part, ME))


def test_a_free_part_is_taken_in_the_order_of_the_hash() -> None:
    assert claims().decide(NOTHING) == [Take(Claim(ME, best("abc"), 1))]
    rest = "abc".replace(best("abc"), "")
    assert claims().decide(Reading([taken(best("abc"))], {}, {})) == [Take(Claim(ME, best(rest), 1))]


def test_peers_choose_differently() -> None:
    chosen = Counter(
        decision.claim.part
        for number in range(300)
        for decision in Claims(FAMILY, PeerId(f"p{number}"), LASTS).decide(NOTHING)
        if isinstance(decision, Take)
    )
    assert min(chosen.values()) > 60, chosen


def test_a_finished_part_is_not_taken_and_ours_is_released() -> None:
    mine = claims()
    decision = mine.decide(Reading([], {"a": 10, "b": 10, "c": 9}, {}))
    assert decision == [Take(Claim(ME, "c", 1))]
    assert mine.decide(Reading([], {"a": 10, "b": 10, "c": 10}, {})) == [Release(), Wait()]
    assert mine.mine is None
    assert mine.decide(Reading([], {"a": 10, "b": 10, "c": 10}, {})) == [Wait()]


@pytest.mark.parametrize("is_finished", [True, False])
def test_who_gives_a_part_up_chooses_anew_by_the_same_reading(is_finished: bool) -> None:
    mine = claims()
    mine.mine, mine.is_confirmed = taken("a", ME), True
    sight = Reading([taken("a", OTHER, 2), taken("b", PeerId("third"))], {"a": 10} if is_finished else {}, {"c": 4})
    assert mine.decide(sight) == [Release() if is_finished else Yield(OTHER), Take(Claim(ME, "c", 5))]
    assert mine.mine == Claim(ME, "c", 5)
    assert not mine.is_confirmed


def test_with_nothing_to_take_one_waits() -> None:
    assert claims().decide(Reading([taken(part) for part in LASTS], {}, {})) == [Wait()]
    assert claims().decide(Reading([taken("a"), taken("b")], {}, {}), avoid=["c"]) == [Wait()]


def test_a_claim_counts_once_it_was_read_back() -> None:
    mine = claims()
    mine.decide(NOTHING)
    assert not mine.is_confirmed
    assert mine.decide(NOTHING) == [Keep()]
    assert mine.is_confirmed


def test_taking_over_is_a_higher_term_than_all_before() -> None:
    decision = claims().decide(Reading([], {"a": 10, "b": 10, "c": 4}, {"c": 7}))
    assert decision == [Take(Claim(ME, "c", 8))]


@pytest.mark.parametrize(
    ("ours", "theirs", "gives_up"),
    [
        ((1, 4), (1, 6), True),  # (term, published): further
        ((1, 6), (9, 4), False),
        ((1, 4), (2, 4), True),  # as far, and later
        ((2, 4), (1, 4), False),
    ],
)
def test_who_has_published_further_goes_on_then_who_came_later(
    ours: tuple[int, int], theirs: tuple[int, int], gives_up: bool
) -> None:
    mine = claims()
    mine.mine = taken("a", ME, *ours)
    decision = mine.decide(Reading([taken("a", OTHER, *theirs)], {"a": 6}, {}))[0]
    assert decision == (Yield(OTHER) if gives_up else Keep())


def test_of_equal_claims_the_hash_decides_and_both_agree() -> None:
    outcomes = []
    for me, rival in ((ME, OTHER), (OTHER, ME)):
        each = Claims(FAMILY, me, LASTS)
        each.mine = taken("a", me)
        outcomes.append(each.decide(Reading([taken("a", rival)], {}, {}))[0])
    assert [isinstance(each, Keep) for each in outcomes].count(True) == 1
    assert [isinstance(each, Yield) for each in outcomes].count(True) == 1


def test_a_rival_on_another_part_is_none() -> None:
    mine = claims()
    mine.mine = taken("a", ME)
    assert mine.decide(Reading([taken("b", OTHER, 9, 9)], {}, {})) == [Keep()]


def test_keepers_are_few_and_never_the_owner() -> None:
    peers = [PeerId(f"p{number}") for number in range(20)]
    found = keepers(FAMILY, "a", peers, peers[3])
    assert len(found) == MOST_KEEPERS
    assert keepers(FAMILY, "a", peers, found[0])[0] == found[1]
    assert keepers(FAMILY, "a", [OTHER], OTHER) == []


def test_a_file_or_a_failure_of_the_part_before_says_nothing_of_the_one_that_was_taken_since() -> None:
    """A file is made, and a run founded, beside the looks: meanwhile ours may be another part."""
    mine = claims()
    mine.mine, mine.is_confirmed = taken("a", ME), True
    mine.decide(Reading([taken("a", OTHER, 2), taken("b", PeerId("third"))], {}, {}))
    mine.published("a", 7)
    assert mine.mine == Claim(ME, "c", 1)
    assert not mine.give_up("a")
    assert mine.mine == Claim(ME, "c", 1)
    mine.published("c", 2)
    assert mine.mine == Claim(ME, "c", 1, 2)
    assert mine.give_up("c")
    assert mine.mine is None

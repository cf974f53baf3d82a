"""What a node learns of a family, and which peers it names for wrong entries."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shoal.node.experts.card import MAX_TOKENS
from shoal.node.experts.claims import Claim
from shoal.node.experts.view import CARDS, MAX_TERM
from shoal.protocol.base.ids import RunId, digest
from shoal.protocol.messages.directory import ExpertCard
from tests.unit.experts.family_kit import ANNA, BOB, LIAR, card, listed, other, size_of, view


def test_the_highest_term_that_can_be_said_does_not_keep_a_part_from_all_others() -> None:
    seen = view()
    assert seen.take_in(0.0, [listed(LIAR, term=MAX_TERM)]) == []
    following = seen.reading(1.0).terms["net"] + 1
    assert seen.take_in(2.0, [listed(BOB, term=following)]) == []
    assert Claim(BOB.peer, "net", following) in seen.reading(3.0).claims


def test_a_claim_lives_while_it_is_renewed() -> None:
    seen = view()
    assert seen.take_in(0.0, [listed(BOB, term=3)]) == []
    assert seen.reading(59.0).claims == [Claim(BOB.peer, "net", 3)]
    assert seen.take_in(50.0, [listed(BOB, term=3)]) == []  # the same record again
    assert seen.reading(61.0).claims == []
    assert seen.reading(61.0).terms["net"] == 3, "the term of a dead claim is remembered"
    seen.take_in(70.0, [listed(BOB, sequence=2, term=3)])
    assert seen.reading(129.0).claims
    seen.take_in(75.0, [listed(BOB, sequence=3)])  # given up
    assert seen.reading(76.0).claims == []


def test_a_reading_that_misses_somebody_proves_nothing() -> None:
    seen = view()
    seen.take_in(0.0, [listed(BOB, term=1)])
    seen.take_in(20.0, [])
    assert seen.reading(21.0).claims


def test_the_furthest_card_outlives_its_author_and_only_the_newest_are_kept() -> None:
    seen = view()
    for round in range(1, 8):
        seen.take_in(round, [listed(BOB, sequence=round, term=1, card=card(BOB, round=round))])
    assert seen.reading(1000.0).published == {"net": 7}
    assert [each.round for each in seen.cards("net")] == [7, 6, 5, 4][:CARDS]


def test_a_file_that_nobody_gave_counts_again_once_somebody_says_that_it_has_it() -> None:
    seen, newest = view(), card(BOB, round=6)
    seen.take_in(0.0, [listed(BOB, term=1, card=card(BOB, round=4))])
    seen.take_in(1.0, [listed(BOB, sequence=2, term=1, card=newest)])
    seen.gone(newest)
    assert seen.reading(2.0).published == {"net": 4}
    seen.take_in(3.0, [listed(ANNA, card=newest)])
    assert seen.reading(4.0).published == {"net": 6}
    assert seen.holders(5.0, newest) == [BOB.peer, ANNA.peer]
    assert seen.holders(70.0, newest) == [ANNA.peer], "whose claim has run out is asked for nothing"
    seen.refuse(newest)
    seen.take_in(5.0, [listed(ANNA, sequence=2, card=newest)])
    assert seen.reading(6.0).published == {"net": 4}, "what was refused is never used"


def test_files_that_are_none_take_no_room_from_those_that_are() -> None:
    seen, good = view(), card(BOB, round=4)
    fakes = [card(LIAR, round=10, file=digest("test fake", bytes([number]))) for number in range(CARDS)]
    for number, fake in enumerate(fakes):
        seen.take_in(number, [listed(LIAR, sequence=number, card=fake)])
        (seen.refuse if number % 2 else seen.gone)(fake)
    seen.take_in(9.0, [listed(BOB, term=1, card=good)])
    assert seen.cards("net") == [good]
    seen.take_in(10.0, [listed(LIAR, sequence=99, card=fakes[1])])
    assert seen.cards("net") == [good], "what was refused is shown in vain"


def _changed(field: str) -> ExpertCard:
    """Bob's card, with a field changed after it was signed."""
    good = card(BOB)
    values: dict[str, Any] = {
        "round": 6,
        "tokens": 1,
        "file": other(good.file),
        "root": other(good.root),
        "author": LIAR.peer,
    }
    return dataclasses.replace(good, **{field: values[field]})


@pytest.mark.parametrize("field", ["tokens", "file", "root", "author"])
def test_a_tampered_card_is_refused_and_its_sender_named(field: str) -> None:
    seen = view()
    (error,) = seen.take_in(0.0, [listed(LIAR, term=5, card=_changed(field))])
    assert error.peer == LIAR.peer
    assert "forged" in error.reason
    assert seen.reading(1.0).claims == [], "a claim beside a forged card counts"
    assert seen.cards("net") == []


@pytest.mark.parametrize(
    "bad",
    [
        card(LIAR, steps=1),
        card(LIAR, round=11, steps=44),
        card(LIAR, round=0, steps=0),
        card(LIAR, size=size_of("net") + (9 << 20)),
        card(LIAR, size=4),
        card(LIAR, tokens=MAX_TOKENS + 1),  # to which nobody could add any
        card(LIAR, "text"),  # shown as one of `net`
        card(LIAR, "other", size=size_of("net")),
        dataclasses.replace(card(LIAR), family=RunId(bytes(32))),
    ],
)
def test_a_card_that_cannot_be_is_refused_though_it_is_signed(bad: ExpertCard) -> None:
    seen = view()
    (error,) = seen.take_in(0.0, [listed(LIAR, term=1, card=bad)])
    assert error.peer == LIAR.peer
    assert seen.cards("net") == []


def test_a_seed_is_its_founders_and_of_families_that_have_one() -> None:
    (error,) = view().take_in(0.0, [listed(BOB, part="", card=card(BOB, "", round=0, steps=0))])
    assert "has not" in error.reason


def test_a_part_that_is_none_and_an_absurd_term_are_refused() -> None:
    errors = view().take_in(0.0, [listed(LIAR, part="nonsense"), listed(BOB, term=MAX_TERM + 1)])
    assert [error.peer for error in errors] == [LIAR.peer, BOB.peer]


def test_the_owner_is_whoever_has_the_highest_term() -> None:
    seen = view()
    seen.take_in(0.0, [listed(BOB, term=1), listed(LIAR, term=2)])
    found = seen.owner(1.0, "net")
    assert found is not None
    assert found[0] == LIAR.peer
    assert seen.owner(1.0, "text") is None

"""Bytes of rounds: only what was asked for, only what can be applied, and only for a while."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.ids import result_hash
from shoal.protocol.messages.rounds import Ask, Commit, Fetch, Fetched
from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.allreduce.shelf import KEPT_ROUNDS, MOST_ROUNDS, Decision, Shelf
from tests.simulation.facts import POISON, FactReducer
from tests.unit.rounds_kit import PEERS, A, B, certificate, refs, refused, value

MASK = mask_of(PEERS, PEERS)
GOOD = Fetched(5, 0, 1, MASK, b"mean 1")


@pytest.fixture
def shelf() -> Shelf:
    made = Shelf()
    made.open(FactReducer())
    return made


def test_bytes_come_by_hash_and_only_if_they_were_asked_for(shelf: Shelf) -> None:
    with refused(shelf, B, "nobody asked for"):
        shelf.take(B, GOOD)
    shelf.fetch(5, 0, 1, refs()[1].hash, B)
    with refused(shelf, B, "nobody asked for"):
        shelf.take(B, Fetched(5, 0, 1, MASK, b"other bytes"))
    with refused(shelf, B, "nobody asked for"):  # who is in it is part of its name
        shelf.take(B, Fetched(5, 0, 1, b"\x01", b"mean 1"))
    with refused(shelf, A, "nobody asked for"):  # nor did anybody ask A
        shelf.take(A, GOOD)
    assert shelf.take(B, GOOD)
    assert shelf.missing(refs()) == [0, 2]


def test_bytes_are_new_once_whoever_sends_them(shelf: Shelf) -> None:
    """What comes twice is no lie, but no progress either."""
    for holder in (A, B):
        shelf.fetch(5, 0, 1, refs()[1].hash, holder)
    assert [shelf.take(sender, GOOD) for sender in (A, A, B)] == [True, False, False]


def test_bytes_that_cannot_be_applied_are_refused_even_under_their_hash(shelf: Shelf) -> None:
    shelf.fetch(5, 0, 0, result_hash(MASK, POISON), B)
    with refused(shelf, B, "bad result of chunk 0"):
        shelf.take(B, Fetched(5, 0, 0, MASK, POISON))


def decide(shelf: Shelf, rounds: range) -> None:
    for round in rounds:
        proof = certificate()
        proof = dataclasses.replace(proof, proposal=dataclasses.replace(proof.proposal, round=round))
        shelf.decide(Decision(proof, value().chunks, (b"mean 0", b"mean 1", b"mean 2")))


def kept(shelf: Shelf) -> list[int]:
    return [round for round in range(200) if shelf.decision(round)]


def test_a_decided_round_is_served(shelf: Shelf) -> None:
    decide(shelf, range(5, 10))
    assert kept(shelf) == [9]
    (commit,) = shelf.answer(A, Ask(9, 0, 0))
    assert isinstance(commit.message, Commit)  # type: ignore[union-attr]
    (fetched,) = shelf.answer(A, Fetch(9, 0, 1, refs()[1].hash))
    assert fetched.message == Fetched(9, 0, 1, MASK, b"mean 1")  # type: ignore[union-attr]
    assert shelf.answer(A, Fetch(9, 0, 1, refs()[0].hash)) == []


def test_a_round_stays_until_the_next_one_is_decided(shelf: Shelf) -> None:
    decide(shelf, range(5, 6))
    shelf.put(0, refs()[0].hash, MASK, b"mean 0")
    assert kept(shelf) == [5]
    decide(shelf, range(6, 7))
    assert kept(shelf) == [6]
    assert shelf.answer(A, Ask(5, 0, 0)) == []


def test_a_round_of_which_somebody_fetches_stays_for_a_while(shelf: Shelf) -> None:
    decide(shelf, range(5, 6))
    assert shelf.answer(A, Fetch(5, 0, 1, refs()[1].hash))
    shelf.put(0, refs()[0].hash, MASK, b"mean 0")
    assert kept(shelf) == [5]
    decide(shelf, range(6, 5 + KEPT_ROUNDS))
    assert kept(shelf) == [5, 4 + KEPT_ROUNDS]
    decide(shelf, range(5 + KEPT_ROUNDS, 6 + KEPT_ROUNDS))
    assert kept(shelf) == [5 + KEPT_ROUNDS]


def test_rounds_are_kept_for_whoever_catches_up(shelf: Shelf) -> None:
    shelf.keep_after = 4
    decide(shelf, range(5, 15))
    shelf.put(0, refs()[0].hash, MASK, b"mean 0")
    assert kept(shelf) == list(range(5, 15))


def test_nobody_makes_us_keep_rounds_for_ever(shelf: Shelf) -> None:
    shelf.keep_after = 4
    last = 5 + 2 * MOST_ROUNDS
    decide(shelf, range(5, last + 1))
    assert kept(shelf) == list(range(last - MOST_ROUNDS + 1, last + 1))

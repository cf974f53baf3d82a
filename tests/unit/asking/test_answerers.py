"""Which peer is asked, when an answer is late, and which peers are left alone."""

from __future__ import annotations

import pytest

from shoal.node.inference.remote.asking.answerers import (
    LEAST,
    LIED,
    MOST_HEDGES,
    REMEMBERED,
    REST,
    Answerer,
    Answerers,
    Lie,
)
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from tests.unit.asking.kit import ANNA, BOB

GONE = TransportError("gone")


def two() -> tuple[Answerers, Answerer, Answerer]:
    answerers = Answerers(10.0)
    answerers.update([ANNA, BOB])
    anna, bob = answerers.all()
    return answerers, anna, bob


def test_the_quickest_is_asked_first() -> None:
    answerers, anna, bob = two()
    for _ in range(5):
        anna.answered(0, 0.3)
        bob.answered(0, 0.1)
    assert answerers.best(0) is bob
    assert answerers.best(0, {bob}) is anna
    assert answerers.best(0, {anna, bob}) is None


def test_who_fails_rests_twice_as_long_each_time() -> None:
    answerers, anna, bob = two()
    rests = []
    now = 0.0
    for _ in range(9):
        anna.failed(now, GONE)
        rests.append(anna.rests_until - now)
        assert answerers.best(now) is bob
        now = anna.rests_until
        assert answerers.is_able(now, anna)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert answerers.best(now) is bob, "who works comes first"
    anna.works()
    anna.failed(now, GONE)
    assert anna.rests_until == now + REST[0]


def test_who_has_failed_has_less_time_to_be_met() -> None:
    _, anna, _ = two()
    assert anna.meeting_deadline == 10
    anna.failed(0, GONE)
    assert anna.meeting_deadline == LEAST
    anna.works()
    assert anna.meeting_deadline == 10


def test_a_liar_rests_long() -> None:
    _, anna, _ = two()
    anna.failed(0, Lie("no sum", ANNA))
    assert anna.rests_until == LIED


def test_how_late_is_late_is_learned_for_tokens_and_for_prompts() -> None:
    _, anna, _ = two()
    assert (anna.usual(0), anna.deadline(0)) == (2.5, 10), "nothing is known yet: another is asked before it has failed"
    for _ in range(50):
        anna.answered(0, 0.5)
        anna.answered(256, 4.0)
    assert anna.usual(0) == pytest.approx(0.5, abs=0.01)
    assert anna.deadline(0) == pytest.approx(4.0, abs=0.1)
    assert anna.usual(128) == pytest.approx(2.0, abs=0.05)
    assert anna.usual(384) == pytest.approx(6.0, abs=0.15)
    assert anna.usual(100_000) == anna.deadline(100_000) == 10, "the owner's limit holds whatever was learned"


def test_a_quick_peer_has_a_moment_all_the_same() -> None:
    _, anna, _ = two()
    for _ in range(50):
        anna.answered(0, 0.001)
    assert anna.deadline(0) == LEAST


def test_one_call_of_ten_is_asked_twice() -> None:
    answerers, _, _ = two()
    at_first = 0
    while answerers.may_hedge():
        at_first += 1
    assert at_first == MOST_HEDGES
    hedges = 0
    for _ in range(1000):
        answerers.called()
        hedges += answerers.may_hedge()
    assert hedges == pytest.approx(100, abs=2)


def test_what_was_learned_of_who_stays_is_kept() -> None:
    answerers, anna, _ = two()
    answerers.update([ANNA])
    assert answerers.all() == [anna]
    answerers.update([BOB, ANNA])
    assert anna in answerers.all()


def test_a_liar_that_comes_anew_is_the_same_liar() -> None:
    answerers, anna, bob = two()
    anna.failed(0, Lie("no sum", ANNA))
    answerers.update([BOB])
    answerers.update([BOB, ANNA])
    assert answerers.best(LIED - 1, {bob}) is None
    for number in range(2 * REMEMBERED):
        answerers.update([PeerId(f"p{number}")])
    answerers.update([ANNA])
    assert answerers.all() != [anna], "strangers cost no more memory than so much"


def test_who_was_outrun_before_it_could_answer_seems_neither_quick_nor_slow() -> None:
    _, anna, _ = two()
    for _ in range(20):
        anna.answered(0, 0.5)
    usual = anna.usual(0)
    anna.outrun(0, 0.01)
    assert anna.usual(0) == usual
    anna.outrun(0, 3.0)
    assert anna.usual(0) > usual

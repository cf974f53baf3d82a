"""How long a round waits for a member that was called, and of whom it does not expect anything soon."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from shoal.protocol.averaging.context import LATE_DOUBLINGS, Context
from shoal.protocol.averaging.doubts import Doubts
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.steering import CLOSE, FINISH, Steering
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.messages.averaging import Call, Offer
from tests.unit.rounds_kit import BASE, POLICY, A, B, C, offer, sent

LONG = 100.0  # seconds that a round's training takes
PATIENCE = 0.5


class Play:
    """Steering of one round, and what several share."""

    def __init__(self, history: Digest = BASE.history) -> None:
        """`history`: what B says that its state comes from."""
        self.base = BASE
        spread = Estimate(initial=PATIENCE, floor=PATIENCE, ceiling=600.0, samples=100)
        self.context: Any = SimpleNamespace(
            us=SimpleNamespace(me=A, part=0),
            policy=POLICY,
            spread=spread,
            training=Estimate(initial=0.0, floor=0.0, ceiling=3600.0, mean=LONG, samples=10),
            late=Doubts(LATE_DOUBLINGS),
            view=SimpleNamespace(status=lambda peer: SimpleNamespace(round=self.base.round, history=history)),
        )
        self.begin()

    def begin(self, took: float = LONG) -> None:
        """A round in which A is ready after this time."""
        self.offers: dict[PeerId, Offer] = {A: offer(A)}
        self.exchange = SimpleNamespace(absent={})
        self.steering = Steering(
            cast(Context, self.context), self.base, cast(Exchange, self.exchange), self.offers, -took
        )
        self.steering._open(0.0)

    def waits(self) -> float:
        """Seconds after the first one."""
        return self.steering._waits_until(B)

    def miss(self) -> None:
        """B is gone on without."""
        self.exchange.absent[B] = None
        self.steering._learn_who_is_late(self.waits())


SHORT = CLOSE * PATIENCE
WHOLE = PATIENCE + FINISH * LONG


def test_who_was_called_may_finish_its_step() -> None:
    assert Play().waits() == WHOLE


def test_a_round_without_a_worker_for_a_while_is_no_reason_to_wait_longer() -> None:
    play = Play()
    play.begin(took=100 * LONG)
    assert play.waits() == WHOLE


def test_who_is_on_its_way_to_our_state_does_not_train() -> None:
    play = Play(history=digest("another history"))
    assert play.waits() == SHORT
    play.miss()
    assert not play.context.late.leaves_out(B, BASE.round + 1), "nor is it late"


def test_who_is_late_is_not_waited_for_so_long_soon_again() -> None:
    play = Play()
    play.miss()
    for round, seconds in ((BASE.round + 1, SHORT), (BASE.round + 2, WHOLE)):
        play.base = replace(BASE, round=round)
        play.begin()
        assert play.waits() == seconds


def test_who_comes_within_that_time_after_all_is_waited_for_again() -> None:
    play = Play()
    play.miss()
    play.offers[B] = offer(B)
    play.steering._learn_who_is_late(WHOLE + 1.0)
    assert play.waits() == SHORT, "it came too late"
    play.steering._learn_who_is_late(WHOLE - 1.0)
    assert play.waits() == WHOLE


def test_who_offers_nothing_is_trusted_by_nobody() -> None:
    play = Play()
    play.miss()
    play.offers[B] = offer(B, weight=0)
    play.steering._learn_who_is_late(1.0)
    assert play.waits() == SHORT


def test_who_comes_to_be_waited_for_is_called_at_once_however_long_the_round_has_waited() -> None:
    """And others again and again, ever more rarely: a call may be lost."""
    play = Play()
    missing = [B]
    play.steering.missing = lambda: missing  # type: ignore[method-assign]

    def called(now: float) -> list[PeerId]:
        return [each.to for each in sent(play.steering._call(now), Call)]

    begin = play.steering._call_due()
    assert called(begin - 0.1) == []
    assert [called(begin + patiences * PATIENCE) for patiences in range(9)] == [
        *([B], [B], [B]),
        *([], [B], [], [], [], [B]),
    ]
    later = begin + 10 * PATIENCE
    assert called(later) == []
    missing.append(C)
    assert called(later) == [C]
    assert called(later + PATIENCE) == [C]
    missing.remove(B)  # it was lost
    assert called(later + 1.5 * PATIENCE) == []
    missing.append(B)
    assert called(later + 1.5 * PATIENCE) == [B]

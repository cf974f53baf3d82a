"""Who of a group is late, who is given up, and from whom patience is learned."""

from __future__ import annotations

import pytest

from shoal.protocol.estimate import Estimate
from shoal.protocol.headway import ANSWER, IDLE, STUCK, Headway
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Busy

PEER, OTHER = PeerId("peer"), PeerId("other")
PATIENCE = 2.0


def busy(sent: int, *, is_waiting: bool = False, is_queued: bool = False) -> Busy:
    return Busy(1, 0, 1, sent, 0, is_waiting, is_queued)


@pytest.fixture
def pace() -> Estimate:
    return Estimate(initial=PATIENCE, floor=PATIENCE, ceiling=60.0)


@pytest.fixture
def headway(pace: Estimate) -> Headway:
    return Headway([PEER, OTHER], 0.0, pace)


def remind(headway: Headway, now: float) -> float:
    """Remind PEER as soon as it is due; when that was."""
    while not headway.is_due(now, PEER):
        now += 0.5
    return now


def test_patience_is_learned_from_those_who_bring_something_by_themselves(headway: Headway, pace: Estimate) -> None:
    for now in (1.9, 3.8, 5.7):
        headway.hear(now, PEER, progress=True)
    assert pace.deadline() > PATIENCE


def test_what_came_only_when_it_was_asked_for_teaches_nothing(headway: Headway, pace: Estimate) -> None:
    now = 0.0
    for _ in range(5):
        now = remind(headway, now) + 1.9
        headway.hear(now, PEER, progress=True)
    assert pace.samples == 0


def test_who_waited_for_another_teaches_nothing(headway: Headway, pace: Estimate) -> None:
    headway.report(1.0, PEER, busy(3, is_waiting=True))
    headway.hear(1.9, PEER, progress=True)
    assert pace.samples == 0
    headway.hear(2.0, PEER, progress=True)
    assert pace.samples == 1


def test_a_queue_excuses_only_as_long_as_it_is_confirmed(headway: Headway) -> None:
    now = remind(headway, 0.0)
    headway.report(now, PEER, busy(0, is_queued=True))
    assert not headway.is_late(now + ANSWER, PEER)
    now = remind(headway, now)
    assert not headway.is_late(now, PEER)  # it has no answer yet
    assert headway.is_late(now + ANSWER, PEER)  # it has lost its queue: a restart, for example


def test_a_link_that_moves_is_never_given_up_and_a_wedged_one_is(headway: Headway) -> None:
    now = 0.0
    for count in range(1, 20):
        now = remind(headway, now)
        headway.report(now, PEER, busy(count, is_queued=True))
        headway.hear(now, PEER, progress=False)
        assert not headway.is_given_up(now, PEER, owes_bytes=True)
    for _ in range(IDLE + 1):
        now = remind(headway, now)
        headway.report(now, PEER, busy(19, is_queued=True))
        headway.hear(now, PEER, progress=False)
    assert headway.is_given_up(now + STUCK * PATIENCE, PEER, owes_bytes=True)
    assert not headway.is_given_up(now + STUCK * PATIENCE, PEER, owes_bytes=False)


def test_silence_ends_it_for_anybody(headway: Headway) -> None:
    now = 0.0
    for _ in range(5):
        now = remind(headway, now)
    assert headway.is_given_up(now, PEER, owes_bytes=False)
    assert not headway.is_given_up(now, OTHER, owes_bytes=True)

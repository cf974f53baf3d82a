"""Which members of a group are late, which are given up, and from which patience is learned."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.headway import ANSWER, IDLE, STUCK, UNKNOWN, Headway
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Progress

PEER, OTHER = PeerId("peer"), PeerId("other")
PATIENCE = 2.0
PAYLOADS = 30
PAUSE = STUCK * UNKNOWN  # seconds in which a link that nobody knows may send nothing


def busy(sent: int, *, is_waiting: bool = False, is_queued: bool = False) -> Progress:
    return Progress(0, 1, sent, 0, is_waiting, is_queued)


@pytest.fixture
def pace() -> Estimate:
    return Estimate(initial=PATIENCE, floor=PATIENCE, ceiling=60.0)


@pytest.fixture
def headway(pace: Estimate) -> Headway:
    return Headway({PEER: PAYLOADS, OTHER: PAYLOADS}, 0.0, pace)


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
    headway.report(1.0, PEER, busy(3, is_waiting=True), may_wait=True)
    headway.hear(1.9, PEER, progress=True)
    assert pace.samples == 0
    headway.hear(2.0, PEER, progress=True)
    assert pace.samples == 1


def test_a_queue_excuses_only_as_long_as_it_is_confirmed(headway: Headway) -> None:
    now = remind(headway, 0.0)
    headway.report(now, PEER, busy(0, is_queued=True), may_wait=True)
    assert not headway.is_late(now + ANSWER, PEER)
    now = remind(headway, now)
    assert not headway.is_late(now, PEER)  # it has no answer yet
    assert headway.is_late(now + ANSWER, PEER)  # it has lost its queue: a restart, for example


def test_a_link_that_moves_is_never_given_up_and_a_wedged_one_is(headway: Headway) -> None:
    now = 0.0
    for count in range(1, 20):
        now = remind(headway, now)
        headway.report(now, PEER, busy(count, is_queued=True), may_wait=True)
        headway.hear(now, PEER, progress=False)
        assert not headway.is_given_up(now, PEER, owes_bytes=True)
    for _ in range(IDLE + 1):
        now = remind(headway, now)
        headway.report(now, PEER, busy(19, is_queued=True), may_wait=True)
        headway.hear(now, PEER, progress=False)
    assert headway.is_given_up(now + PAUSE, PEER, owes_bytes=True)
    assert not headway.is_given_up(now + PAUSE, PEER, owes_bytes=False)


def test_silence_ends_it_for_anybody(headway: Headway) -> None:
    now = 0.0
    for _ in range(5):
        now = remind(headway, now)
    assert headway.is_given_up(now, PEER, owes_bytes=False)
    assert not headway.is_given_up(now, OTHER, owes_bytes=True)


def lie(headway: Headway, now: float, said: Progress, may_wait: bool) -> float:
    """PEER is reminded once more, and says this; when that was."""
    now = remind(headway, now)
    headway.hear(now, PEER, progress=False)
    headway.report(now, PEER, said, may_wait)
    return now


def test_who_says_that_it_moves_is_believed_as_often_as_it_can_be_true(headway: Headway) -> None:
    now, count = 0.0, 0
    while not headway.is_given_up(now, PEER, owes_bytes=True):
        count += 1
        now = lie(headway, now, busy(count, is_queued=True), may_wait=True)
        assert count <= PAYLOADS + IDLE + PAUSE / PATIENCE
    assert count > PAYLOADS
    assert headway.moved == PAYLOADS


def test_reminders_become_rarer_only_while_they_are_not_answered(headway: Headway) -> None:
    """Else a slow link would be given up on an answer that is long out of date."""
    now, gaps = 0.0, []
    for _ in range(6):
        before, now = now, lie(headway, now, busy(0, is_queued=True), may_wait=True)
        gaps.append(now - before)
    assert gaps == [PATIENCE] * 6
    before = remind(headway, now)
    assert remind(headway, before) - before > PATIENCE


def test_new_work_is_new_credit(headway: Headway) -> None:
    now = 0.0
    for count in range(1, 2 * PAYLOADS):
        now = lie(headway, now, busy(count, is_queued=True), may_wait=True)
        if count == PAYLOADS:
            headway.wait_anew(now, {PEER: PAYLOADS})
        assert not headway.is_given_up(now, PEER, owes_bytes=True)


def test_who_is_doubted_must_bring_something(pace: Estimate) -> None:
    headway, now = Headway({PEER: PAYLOADS}, 0.0, pace, doubted=[PEER]), 0.0
    headway.wait_anew(now, {PEER: PAYLOADS})
    count = 0
    while now <= PAUSE:
        count += 1
        now = lie(headway, now, busy(count, is_queued=True), may_wait=True)
    assert headway.is_given_up(now, PEER, owes_bytes=True)


def test_who_waits_is_excused(headway: Headway) -> None:
    now = 0.0
    for _ in range(3 * PAYLOADS):
        now = lie(headway, now, busy(0, is_waiting=True), may_wait=True)
        assert not headway.is_given_up(now, PEER, owes_bytes=True)


def test_its_own_contribution_is_nothing_that_a_member_could_wait_for(headway: Headway) -> None:
    now = 0.0
    while now <= PAUSE:
        now = lie(headway, now, busy(0, is_waiting=True), may_wait=False)
    assert headway.is_given_up(now, PEER, owes_bytes=True)

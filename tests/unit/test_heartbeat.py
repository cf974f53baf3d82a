"""Pings: often during traffic, seldom at rest, and repeated while there is no answer."""

from __future__ import annotations

import pytest

from shoal.protocol.net.measure.heartbeat import MEASURE, OFTEN, QUIET, SILENCE, SILENCE_AT_REST, TALK, Heartbeat


class Pair:
    """Two ends of a link that look after it each OFTEN seconds; what is said arrives at once."""

    def __init__(self, seconds_apart: float = 1.0) -> None:
        self.ends = Heartbeat(), Heartbeat()
        self.pings = [0, 0]
        self.trips: list[float | None] = [None, None]
        self.now = 0.0
        self._apart = seconds_apart
        self.is_cut = False
        for end in self.ends:
            end.begin(0.0)
            end.answered(0.0, end.ping(0.0))

    def live(self, seconds: float, words: int = 0) -> None:
        """Let time pass; before each look the first end sends the second `words` messages."""
        until = self.now + seconds
        while self.now < until:
            self.now += OFTEN
            for _ in range(words):
                self.ends[0].said()
                self.ends[1].heard(self.now)
            for number in (0, 1):
                self._look(number, self.now + number * self._apart)

    def _look(self, number: int, now: float) -> None:
        end, other = self.ends[number], self.ends[1 - number]
        if end.is_due(now):
            ping = end.ping(now)
            self.pings[number] += 1
            if not self.is_cut:
                other.heard(now)
                end.heard(now + 0.25)
                self.trips[number] = end.answered(now + 0.25, ping)


@pytest.mark.parametrize("apart", [0.0, 1.0, 3.0])
def test_a_link_at_rest_is_kept_alive_by_either_end_and_measured_by_both(apart: float) -> None:
    pair = Pair(apart)
    pair.live(3600)
    assert min(pair.pings) >= 3600 / (MEASURE + OFTEN) - 1
    assert 3600 / (QUIET + OFTEN) <= sum(pair.pings) <= 3600 / QUIET + 1
    assert pair.trips == [0.25, 0.25]


def test_a_link_that_is_talked_over_is_measured_often() -> None:
    pair = Pair()
    pair.live(600, words=TALK)
    assert pair.pings == [120, 120]
    pair.live(600, words=1)
    assert max(pair.pings) <= 120 + 600 / OFTEN / (TALK / 2) + 1


def test_who_does_not_answer_at_rest_is_asked_often_and_given_up() -> None:
    pair = Pair()
    pair.live(50)
    before = list(pair.pings)
    pair.is_cut = True
    pair.live(QUIET + OFTEN)
    assert not any(end.is_silent(pair.now) for end in pair.ends)
    pair.live(SILENCE_AT_REST + OFTEN)
    assert all(end.is_silent(pair.now + 1) for end in pair.ends)
    assert all(now - then >= SILENCE_AT_REST / OFTEN for now, then in zip(pair.pings, before, strict=True))


def given_up_after(words: list[int], doubted_at: int | None = None) -> float:
    """The silence that is too long, looked at each OFTEN seconds after so many words; doubted at one of these looks."""
    end = Heartbeat()
    end.begin(0.0)
    for look, count in enumerate(words):
        if look == doubted_at:
            end.doubt()
        if end.is_silent(look * OFTEN):
            return look * OFTEN
        for _ in range(count):
            end.said()
        end.ping(look * OFTEN)
    raise AssertionError("it was never given up")


def test_a_link_that_is_talked_over_has_longer_to_answer() -> None:
    assert given_up_after([TALK] * 20) == SILENCE + OFTEN
    assert given_up_after([TALK - 1] * 20) == SILENCE_AT_REST + OFTEN
    assert given_up_after([0, TALK] + [0] * 20) == SILENCE + OFTEN, "the talk may have begun since"


def test_a_link_to_a_peer_that_others_do_not_reach_either_has_not() -> None:
    assert given_up_after([TALK] * 20, doubted_at=2) == SILENCE_AT_REST + OFTEN
    assert given_up_after([TALK] * 20, doubted_at=4) == SILENCE_AT_REST + OFTEN
    end = Heartbeat()
    end.begin(0.0)
    end.doubt()
    end.answered(0.1, end.ping(0.0))
    for _ in range(TALK):
        end.said()
    end.ping(5.0)
    assert not end.is_silent(5.0 + SILENCE), "it has answered since"


def test_words_of_a_peer_that_answers_no_ping_do_not_help_it() -> None:
    end = Heartbeat()
    end.begin(0.0)
    end.ping(0.0)
    for second in range(1, 40):
        end.heard(float(second))
        if end.is_due(float(second)):
            end.ping(float(second))
    assert end.is_silent(39.0)
    end.forgive(39.0)
    assert not end.is_silent(39.0)
    assert end.answered(41.0, end.ping(40.0)) == 1.0
    assert not end.is_silent(100.0)


def test_a_late_answer_proves_life_and_measures_nothing() -> None:
    end = Heartbeat()
    end.begin(0.0)
    first = end.ping(0.0)
    end.ping(5.0)
    assert end.answered(5.5, first) is None
    assert not end.is_silent(50.0)


def test_after_a_change_of_the_way_the_second_answer_is_the_first_that_measures() -> None:
    end = Heartbeat()
    end.begin(0.0)
    end.answered(3.0, end.ping(0.0))
    end.settle()
    assert end.answered(7.0, end.ping(5.0)) is None, "it may have waited for the end of the old way"
    assert end.is_due(7.1)
    assert end.answered(8.25, end.ping(8.0)) == 0.25
    assert not end.is_due(14.0), "at rest again"

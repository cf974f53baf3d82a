"""Whether a worker hangs, and whether others wait for it: from how it ended and how long it is silent."""

from __future__ import annotations

import pytest

from shoal.node.supervisor.liveness import (
    AWAY_LEAST,
    AWAY_LOADING,
    AWAY_MANY,
    HANG_LEAST,
    HANG_LOADING,
    HANG_MANY,
    LOOK,
    Attendance,
    Watchdog,
)


class Watched:
    """A worker under watch, and its clock; `dog` is asked every LOOK seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.dog = Watchdog()
        self.dog.begin(self.now)

    def hangs_after(self, most: float) -> float | None:
        """Seconds of silence until the worker is given up; None if it is not within `most`."""
        begin = self.now
        while self.now - begin < most:
            self.now += LOOK
            if self.dog.look(self.now):
                return self.now - begin
        return None

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            assert self.hangs_after(seconds) is None
            self.dog.stepped()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_who_has_nothing_to_do_may_be_silent_for_ever(watched: Watched) -> None:
    assert watched.hangs_after(10 * HANG_LOADING) is None
    watched.dog.ordered(1)
    watched.dog.stepped()
    watched.dog.answered(1, 1)
    assert watched.hangs_after(10 * HANG_LOADING) is None


def test_the_first_step_has_time_to_load_and_compile_and_the_others_have_not(watched: Watched) -> None:
    watched.dog.ordered(1)
    assert watched.hangs_after(HANG_LOADING) is None
    watched.dog.stepped()
    assert watched.hangs_after(HANG_LOADING) == pytest.approx(HANG_LEAST + LOOK)


def test_slow_steps_earn_patience(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.steps(30, 20.0)
    assert HANG_MANY * 20.0 <= (watched.hangs_after(10_000.0) or 0) < 2 * HANG_MANY * 20.0


def test_the_time_of_a_measurement_is_no_steps(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.steps(30, 1.0)
    usual = watched.dog.usual
    assert watched.hangs_after(50.0) is None
    watched.dog.measured()
    watched.steps(30, 1.0)
    assert watched.dog.usual == pytest.approx(usual, rel=0.1)


def test_new_orders_are_no_sign_of_life(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.dog.stepped()
    for order in range(2, 2 + int(HANG_LEAST / 20)):
        assert watched.hangs_after(20.0) is None
        watched.dog.ordered(order)
    assert watched.hangs_after(20.0) is not None


def test_a_late_order_does_not_begin_with_the_idle_time_before_it(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.dog.stepped()
    assert watched.hangs_after(HANG_LEAST - LOOK) is None
    watched.dog.answered(1, 1)
    watched.dog.ordered(2)
    assert watched.hangs_after(HANG_LEAST) is None


def test_an_answer_to_an_older_order_leaves_the_newer_one_open(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.dog.ordered(2)
    watched.dog.answered(1, 3)
    assert watched.hangs_after(HANG_LOADING) is not None


def test_time_in_which_we_were_stopped_does_not_count(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.dog.stepped()
    watched.now += 10_000.0
    assert not watched.dog.look(watched.now)
    assert watched.hangs_after(HANG_LEAST - 3 * LOOK) is None


def test_who_was_killed_gets_twice_as_long_until_it_makes_a_step(watched: Watched) -> None:
    took = []
    for _ in range(3):
        watched.dog.begin(watched.now)
        watched.dog.ordered(1)
        took.append(watched.hangs_after(100 * HANG_LOADING) or 0)
    assert took == pytest.approx([HANG_LOADING, 2 * HANG_LOADING, 4 * HANG_LOADING], abs=2 * LOOK)
    watched.dog.begin(watched.now)
    watched.dog.ordered(1)
    watched.dog.stepped()
    assert watched.hangs_after(HANG_LOADING) == pytest.approx(HANG_LEAST, abs=2 * LOOK)


def test_a_program_that_reports_no_steps_is_known_by_its_answers(watched: Watched) -> None:
    for order in range(1, 20):
        watched.dog.ordered(order)
        assert watched.hangs_after(600.0) is None
        watched.dog.answered(order, 5)
    watched.dog.ordered(20)
    assert watched.hangs_after(5000.0) is None


def test_an_answer_without_steps_teaches_nothing(watched: Watched) -> None:
    watched.dog.ordered(1)
    watched.dog.answered(1, 0)
    watched.dog.ordered(2)
    assert watched.hangs_after(HANG_LOADING - LOOK) is None


HERE, USUAL = True, 2.0


def test_who_loads_is_waited_for_and_not_for_ever() -> None:
    own = Attendance()
    assert not own.look(1000.0 + AWAY_LOADING, 1000.0, HERE, 0.0)
    assert own.look(1000.1 + AWAY_LOADING, 1000.0, HERE, 0.0)
    assert own.is_away
    own.heard(2000.0)
    assert not own.is_away


def test_who_makes_steps_is_waited_for_by_what_they_take() -> None:
    own = Attendance()
    own.heard(1000.0)
    assert not own.look(1000.0 + AWAY_LEAST, 900.0, HERE, USUAL)
    assert own.look(1000.1 + AWAY_LEAST, 900.0, HERE, USUAL)
    own.heard(2000.0)
    assert not own.look(2000.0 + AWAY_MANY * 60.0, 1900.0, HERE, 60.0)
    assert own.look(2000.1 + AWAY_MANY * 60.0, 1900.0, HERE, 60.0)


def test_silence_counts_only_while_the_others_wait() -> None:
    own = Attendance()
    own.heard(0.0)
    assert not own.look(1000.0 + AWAY_LEAST, 1000.0, HERE, USUAL)


def test_how_long_it_has_been_silent() -> None:
    own = Attendance()
    assert own.silence(1010.0, 1000.0) == 10.0, "it has made no step yet: since it was called for"
    own.heard(900.0)
    assert own.silence(1010.0, 1000.0) == 110.0
    own.lost(for_good=False)
    assert own.silence(1010.0, 1000.0) == 10.0, "the next life"


def test_who_is_not_there_is_not_waited_for() -> None:
    own = Attendance()
    assert own.look(0.0, 0.0, not HERE, USUAL)
    own.heard(1.0)
    own.lost(for_good=False)
    assert not own.is_away
    assert own.look(1.0, 1.0, not HERE, USUAL)
    own.heard(2.0)
    own.lost(for_good=True)
    assert own.is_away
    own.lost(for_good=False)
    assert own.is_away, "until a step is made"


def test_into_a_run_that_goes_on_a_worker_comes_late_until_its_first_step() -> None:
    own = Attendance()
    own.comes_late()
    assert own.is_away
    own.heard(1.0)
    own.comes_late()
    assert not own.is_away, "it has caught up, and trains"

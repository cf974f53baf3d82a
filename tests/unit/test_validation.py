"""When a validation loss is measured, and on how much: rarely enough, soon at first, and on the same sequences."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shoal.node.ipc.messages import MOST_SEQUENCES
from shoal.node.supervisor.validation import EVERY, LEAST, SHARE, ValidationSchedule

FIRST = 0.5  # seconds that the first measurement takes longer: libraries are loaded


class Play:
    """A worker of a schedule, on a clock of its own; a round takes `pace` seconds, a sequence `cost`."""

    def __init__(self, pace: float, cost: float, begins: int = 0, schedule: ValidationSchedule | None = None) -> None:
        self.schedule = schedule or ValidationSchedule()
        self.pace, self.cost, self.now, self.round = pace, cost, 1000.0, begins
        self.seconds: list[float] = []  # of all measurements
        self.made: list[tuple[int, int]] = []  # round, sequences
        self.began = self.now
        self.order()

    def order(self) -> None:
        sequences = self.schedule.due(self.now, self.round)
        if sequences:
            took = sequences * self.cost + (0.0 if self.made else FIRST)
            self.made.append((self.round, sequences))
            self.seconds.append(took)
            self.now += took
            self.schedule.measured(took, sequences)

    def run(self, rounds: int) -> Play:
        for _ in range(rounds):
            self.now += self.pace
            self.round += 1
            self.order()
        return self


@pytest.mark.parametrize("begins", [0, 500, 501, 503])
def test_the_first_figure_comes_after_the_first_round_of_the_worker(begins: int) -> None:
    assert Play(10.0, 0.001, begins).made == []
    assert Play(10.0, 0.001, begins).run(1).made == [(begins + 1, LEAST)]


def test_all_members_measure_the_same_rounds() -> None:
    rounds = {each for begins in (0, 3, 17) for each, _ in Play(10.0, 0.001, begins).run(60).made[2:]}
    assert rounds == {each for each in range(min(rounds), 78) if each % EVERY == 0}


@pytest.mark.parametrize("cost", [1e-5, 1e-3, 2e-3, 0.01, 0.04, 0.3, 5.0])
def test_what_is_measured_after_the_first_takes_its_share_at_most(cost: float) -> None:
    play = Play(10.0, cost)
    for _ in range(1200):
        play.run(1)
        assert sum(play.seconds[1:]) <= SHARE * (play.now - play.began)
    assert len(play.made) > 2


def test_the_sample_is_as_large_as_fits_and_a_power_of_two() -> None:
    settled = {cost: Play(10.0, cost).run(200).made[-1][1] for cost in (0.03, 0.003, 1e-5)}
    assert settled == {0.03: LEAST, 0.003: 128, 1e-5: MOST_SEQUENCES}


def test_where_the_smallest_sample_is_too_dear_rounds_are_left_out() -> None:
    made = Play(10.0, 0.2).run(200).made
    assert {sequences for _, sequences in made} == {LEAST}
    gaps = {later - earlier for (earlier, _), (later, _) in pairwise(made[2:])}
    assert gaps == {16}  # 1.6 s are a hundredth of 16 rounds


def test_a_sample_stays_what_it_is_while_costs_waver() -> None:
    play = Play(10.0, 0.004).run(40)
    usual = play.made[-1][1]
    for cost in (0.0035, 0.0045, 0.003, 0.005) * 5:
        play.cost = cost
        play.run(EVERY)
    assert {sequences for round, sequences in play.made if round > 40} == {usual}


def test_a_sample_shrinks_when_rounds_get_short_and_grows_when_they_get_long() -> None:
    play = Play(10.0, 0.004).run(40)
    before = play.made[-1][1]
    play.pace = 1.0
    during = play.run(400).made[-1][1]
    play.pace = 100.0
    after = play.run(40).made[-1][1]
    assert during < before < after


def test_one_long_wait_makes_no_long_measurement() -> None:
    play = Play(10.0, 0.004).run(40)
    usual = play.made[-1][1]
    play.now += 36_000.0
    assert {sequences for _, sequences in play.run(12).made[-3:]} == {usual}


def test_who_is_never_answered_asks_again_now_and_then() -> None:
    schedule = ValidationSchedule()
    asked = [round for round in range(30) if schedule.due(10.0 * round, round)]
    assert asked == [1, *range(EVERY, 30, EVERY)]


def test_a_measurement_that_was_broken_off_has_its_cost() -> None:
    schedule = ValidationSchedule()
    assert not schedule.due(0.0, 0)
    assert schedule.due(10.0, 1) == LEAST
    schedule.measured(0.01, 1)
    assert schedule.due(40.0, EVERY) > LEAST
    schedule.measured(100.0, 0)
    assert not any(schedule.due(10.0 * round, round) for round in range(EVERY + 1, 500))


def test_a_second_stint_and_an_older_state_are_not_measured() -> None:
    play = Play(10.0, 0.001).run(8)
    assert play.schedule.due(play.now, 8) == 0
    assert play.schedule.due(play.now + 5.0, 3) == 0


def test_the_measurement_of_a_script_has_one_size() -> None:
    made = Play(10.0, 0.1, schedule=ValidationSchedule(1, 1)).run(40).made
    assert {sequences for _, sequences in made} == {1}
    assert [round for round, _ in made] == [1, *range(2 * EVERY, 41, EVERY)]


def test_measurements_that_always_fail_keep_to_the_share_of_time() -> None:
    schedule = ValidationSchedule()
    spent, now = 0.0, 0.0
    for number in range(200):
        now = 10.0 * number
        if schedule.due(now, number):
            schedule.measured(5.0, 0)
            spent += 5.0
    assert 0.0 < spent <= 0.01 * now + 5.0

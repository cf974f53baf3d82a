"""Learned deadlines: golden numbers from RFC 6298's formulas, bounds, and a clock that jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.base.estimate import Estimate


def make() -> Estimate:
    return Estimate(initial=5.0, floor=0.5, ceiling=60.0)


def test_before_the_first_observation_the_deadline_is_initial() -> None:
    assert make().deadline() == 5.0


def test_golden_numbers() -> None:
    estimate = make()
    estimate.observe(2.0)  # mean 2, deviation 1
    assert estimate.deadline() == pytest.approx(2 + 4 * 1)
    estimate.observe(4.0)  # deviation 3/4 * 1 + 1/4 * |2 - 4|, mean 7/8 * 2 + 1/8 * 4
    assert [estimate.mean, estimate.deviation] == pytest.approx([2.25, 1.25])
    assert estimate.deadline() == pytest.approx(2.25 + 4 * 1.25)


def test_a_steady_delay_brings_the_deadline_down_to_it() -> None:
    estimate = make()
    for _ in range(50):
        estimate.observe(3.0)
    assert estimate.deadline() == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(("seconds", "bound"), [(1e-4, 0.5), (59.0, 60.0)])
def test_the_deadline_stays_between_floor_and_ceiling(seconds: float, bound: float) -> None:
    estimate = make()
    estimate.observe(seconds)
    assert estimate.deadline() == bound


@pytest.mark.parametrize("nonsense", [-1.0, 601.0, float("inf"), float("nan")])
def test_what_a_jumped_clock_reports_is_ignored(nonsense: float) -> None:
    estimate = make()
    estimate.observe(2.0)
    before = estimate.deadline()
    estimate.observe(nonsense)
    assert (estimate.samples, estimate.deadline()) == (1, before)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_no_observation_breaks_the_bounds(observations: list[float]) -> None:
    estimate = make()
    for seconds in observations:
        estimate.observe(seconds)
    assert 0.5 <= estimate.deadline() <= 60.0

"""A curve is bounded and still shows the whole run; a reader of all its updates ends with the same points."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.daemon.web.recorder import Curve, Point


@given(st.integers(1, 40), st.integers(0, 400))
def test_a_reader_of_all_news_sees_the_curve_and_it_is_bounded(half: int, count: int) -> None:
    curve, seen = Curve(2 * half), list[Point]()
    for second in range(count):
        news = curve.add((float(second), 1.0))
        seen = (list[Point]() if news.anew else seen) + list(news.points)
        assert seen == curve.points
        assert len(curve.points) <= 2 * half
    times = [point[0] for point in curve.points]
    assert times == sorted(times)
    if count > 4 * half:
        assert len(times) >= half - 1
        assert times[0] <= count / half  # the beginning is still there


def test_merged_points_are_means_at_the_last_time() -> None:
    curve = Curve(4)
    for point in ((0.0, 1.0, math.nan), (1.0, 3.0, 5.0), (2.0, 8.0, math.nan), (3.0, 4.0, math.nan)):
        news = curve.add(point)
    assert news.anew
    assert curve.points[0] == (1.0, 2.0, 5.0)
    assert curve.points[1][:2] == (3.0, 6.0)
    assert math.isnan(curve.points[1][2])
    assert curve.add((4.0, 1.0, 1.0)).points == []  # each point stands for two seconds from now on
    assert curve.add((5.0, 3.0, 1.0)).points == [(5.0, 2.0, 1.0)]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_does_not_spoil_a_mean(bad: float) -> None:
    curve = Curve(2)
    curve.add((0.0, bad))
    curve.add((1.0, 3.0))
    assert curve.points == [(1.0, 3.0)]

"""The laboratory's links, without a network: when a packet comes out, and which do not."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from tests.netlab.links import Lane, Link, lanes

KILOBYTE = 1_000


def lane(rate: float = math.inf, **what: Any) -> Lane:
    return Lane(Link(**what), rate, Random(7))


def test_without_limits_it_is_there_at_once() -> None:
    assert [lane().enter(now, KILOBYTE) for now in (0.0, 5.0)] == [0.0, 5.0]


def test_a_packet_takes_its_size_at_the_rate_and_then_the_delay() -> None:
    line = lane(delay=0.5, rate=8e6)  # a kilobyte per millisecond
    assert line.enter(1.0, KILOBYTE) == pytest.approx(1.501)
    assert line.enter(1.0, KILOBYTE) == pytest.approx(1.502)
    assert line.enter(2.0, KILOBYTE // 2) == pytest.approx(2.5005)


def test_what_the_queue_does_not_hold_is_dropped_at_its_end() -> None:
    line = lane(rate=8e6, queue=0.0105)
    out = [line.enter(0.0, KILOBYTE) for _ in range(20)]
    assert out[:11] == pytest.approx([number / 1e3 for number in range(1, 12)])
    assert out[11:] == [None] * 9
    assert (line.carried, line.lost, line.dropped) == (11, 0, 9)
    assert line.enter(0.005, KILOBYTE) is not None, "there is room again"


def test_what_is_too_large_vanishes() -> None:
    line = lane(mtu=1_400)
    assert [line.enter(0.0, size) for size in (1_400, 1_401)] == [0.0, None]
    assert line.dropped == 1


def test_a_share_is_lost_and_the_same_seed_loses_the_same() -> None:
    one, other = lane(loss=0.2), lane(loss=0.2)
    fates = [one.enter(0.0, KILOBYTE) for _ in range(5_000)]
    assert fates == [other.enter(0.0, KILOBYTE) for _ in range(5_000)]
    assert one.lost == fates.count(None) == pytest.approx(1_000, abs=100)


def test_what_is_lost_has_taken_its_time_on_the_line() -> None:
    line = lane(rate=8e6, loss=1.0)
    assert line.enter(0.0, KILOBYTE) is None
    assert lane_is_busy_until(line) == pytest.approx(0.001)


def lane_is_busy_until(line: Lane) -> float:
    line._loss = 0.0
    out = line.enter(0.0, 0)
    assert out is not None
    return out


def test_up_may_be_slower_than_down() -> None:
    up, down = lanes(Link(delay=0.1, rate=80e6, up=8e6), Random(7))
    assert up.enter(0.0, KILOBYTE) == pytest.approx(0.101)
    assert down.enter(0.0, KILOBYTE) == pytest.approx(0.1001)


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"rate": 0}, {"loss": 1.1}, {"up": 0.0}, {"queue": -1}])
def test_no_link_is_like_this(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no link"):
        Link(**wrong)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (Link(), "no limits"),
        (Link(0.025, 50e6), "50 Mbit/s, 25 ms"),
        (Link(rate=50e6, up=10e6, loss=0.015), "50 Mbit/s, 10 up, 1.5% lost"),
    ],
)
def test_a_link_in_words(link: Link, words: str) -> None:
    assert str(link) == words

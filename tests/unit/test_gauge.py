"""Round trips and rates, measured from ordinary traffic."""

from __future__ import annotations

import pytest

from shoal.protocol.net.measure.rates import ENOUGH, IN_BUFFERS, LEAST, MEMORY, Burst, Gauge, Rate

MIB = 1 << 20


def test_a_round_trip_is_smoothed() -> None:
    gauge = Gauge()
    for seconds in (0.1, 0.1, 0.5):
        gauge.trip(seconds)
    assert gauge.rtt == pytest.approx(0.2)
    gauge.reset()
    assert gauge.rtt is None


def test_a_rate_is_shown_when_enough_was_seen_and_follows_the_link() -> None:
    rate = Rate()
    rate.note(ENOUGH - 1, 1.0)
    assert rate.value is None
    rate.note(1, 0.0)
    rate.note(0, 1.0)
    assert rate.value is None, "what took no time, or brought nothing, tells nothing"
    for _ in range(20):
        rate.note(MIB, 0.1)
    assert rate.value == pytest.approx(10 * MIB, rel=0.3)
    for _ in range(4 * MEMORY // MIB):
        rate.note(MIB, 1.0)
    assert rate.value == pytest.approx(MIB, rel=0.2), "the link has become ten times slower"


def test_the_end_of_a_burst_may_be_in_buffers() -> None:
    """A link of 1 MiB a second behind a buffer that takes IN_BUFFERS at once: the true rate, not that of the buffer."""
    burst, now = Burst(), 5.0
    for number in range(2 * LEAST // IN_BUFFERS):
        took = 0.0001 if number == 0 else IN_BUFFERS / MIB
        burst.wrote(now, now + took, IN_BUFFERS)
        now += took
    assert burst.rate.value == pytest.approx(MIB, rel=0.01)


def test_short_bursts_tell_nothing() -> None:
    burst = Burst()
    for number in range(100):
        burst.wrote(number, number + 0.0001, LEAST - 1)
    assert burst.rate.value is None


def test_what_is_written_and_comes_at_once_by_two_sockets_is_twice_as_fast() -> None:
    gauge, alone = Gauge(), Gauge()
    for number in range(20):
        for late in (0.0, 0.5):  # each takes a second, and one begins when the other is half done
            gauge.wrote(5 + number + late, 6 + number + late, MIB)
            gauge.came(5 + number + late, 6 + number + late, MIB)
        alone.wrote(5 + number, 6 + number, MIB)
        alone.came(5 + number, 6 + number, MIB)
    assert alone.going.rate.value == pytest.approx(MIB, rel=0.2)
    assert gauge.going.rate.value == pytest.approx(2 * MIB, rel=0.2)
    assert alone.coming.value == pytest.approx(MIB, rel=0.05)
    assert gauge.coming.value == pytest.approx(2 * MIB, rel=0.05)

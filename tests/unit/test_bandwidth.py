"""Measuring our own line by the payloads that pass it: in virtual time, with buffers before it, and many peers."""

from __future__ import annotations

import pytest

from shoal.protocol.net.measure.rates import (
    KEPT,
    LEAST_PIECE,
    PAUSE,
    SETTLE,
    SLOT,
    SLOWEST,
    WINDOW,
    Bandwidth,
    Gauge,
    Meter,
    Meters,
)

MIB = 1 << 20
MBIT = 125_000.0


def pass_by(meter: Meter, rate: float, size: int, begin: float, peers: int = 1, buffer: int = 0) -> float:
    """`size` bytes in pieces of 1 MiB to each peer in turn, all at once, over a line of `rate`; when it is done.

    Towards the end there is nothing more for some of them, and the line is not full. The first `buffer` bytes pass at
    once, as the system keeps them.
    """
    since = [begin] * peers
    passed, end = 0, begin
    for number in range(size // MIB):
        passed += MIB
        end = begin + max(0, passed - buffer) / rate
        meter.moved(since[number % peers], end, MIB)
        since[number % peers] = end
    return end


@pytest.mark.parametrize("rate", [1.0, 5.0, 50.0, 400.0])
@pytest.mark.parametrize("peers", [1, 3, 7])
def test_a_line_that_all_peers_share(rate: float, peers: int) -> None:
    meter = Meter()
    pass_by(meter, rate * MBIT, 160 * MIB, begin=1000.0, peers=peers)
    assert meter.rate == pytest.approx(rate * MBIT, rel=0.05 if rate > 1 else 0.25)


@pytest.mark.parametrize("buffer", [1, 4, 12])
def test_what_buffers_take_at_once_is_not_the_line(buffer: int) -> None:
    meter = Meter()
    pass_by(meter, 50 * MBIT, 48 * MIB, begin=7.0, peers=3, buffer=buffer * MIB)
    assert meter.rate == pytest.approx(50 * MBIT, rel=0.1)


def test_a_burst_that_is_over_at_once_tells_nothing() -> None:
    meter, now = Meter(), 0.0
    for _ in range(100):
        now = pass_by(meter, 8000 * MBIT, 64 * MIB, begin=now + 2 * PAUSE)
    assert meter.rate == 0
    meter.moved(now + 10, now + 10 + 2 * SLOWEST, MIB)
    assert meter.rate == 0


def test_a_line_that_has_too_little_to_do_is_still_known_as_fast() -> None:
    meter = Meter()
    now = pass_by(meter, 50 * MBIT, 32 * MIB, begin=0.0)
    pass_by(meter, 5 * MBIT, 16 * MIB, begin=now)
    assert meter.rate == pytest.approx(50 * MBIT, rel=0.3)
    pass_by(meter, 50 * MBIT, 32 * MIB, begin=now + 1000)
    assert meter.rate == pytest.approx(50 * MBIT, rel=0.02)


def test_a_line_that_has_become_slower_is_known_after_minutes() -> None:
    meter = Meter()
    now = pass_by(meter, 50 * MBIT, 32 * MIB, begin=0.0)
    now = pass_by(meter, 5 * MBIT, 64 * MIB, begin=now)
    assert meter.rate > 15 * MBIT
    pass_by(meter, 5 * MBIT, 320 * MIB, begin=now)
    assert meter.rate == pytest.approx(5 * MBIT, rel=0.1)


def test_a_line_that_has_become_faster_is_known_at_once() -> None:
    meter = Meter()
    now = pass_by(meter, 5 * MBIT, 8 * MIB, begin=0.0)
    pass_by(meter, 50 * MBIT, 32 * MIB, begin=now)
    assert meter.rate == pytest.approx(50 * MBIT, rel=0.05)


def test_pieces_before_the_stretch_count_as_far_as_they_lie_in_it() -> None:
    meter = Meter()
    for second in range(4):
        meter.moved(100.0 + second, 101.0 + second, MIB)
    meter.moved(96.0, 104.0, 8 * MIB)  # half of it before all others
    assert meter.rate == pytest.approx(2 * MIB)


def test_pieces_that_are_told_late_count_where_they_belong() -> None:
    meter = Meter()
    for second in range(5):
        meter.moved(100.5 + second, 101.5 + second, MIB)
        meter.moved(100.0 + second, 101.0 + second, MIB)
    assert meter.rate == pytest.approx(2 * MIB, rel=0.01)
    meter.moved(10.0, 20.0, 100 * MIB)
    assert meter.rate == pytest.approx(2 * MIB, rel=0.01)


def test_a_stretch_without_an_end_is_kept_in_bounds() -> None:
    meter, now = Meter(), 0.0
    while now < 5 * SLOWEST:
        meter.moved(now, now + SLOT, 100_000)
        now += SLOT
    assert len(meter._slots) <= 2 * KEPT + 2
    assert meter.rate == pytest.approx(100_000 / SLOT, rel=0.01)


def test_the_downlink_may_be_as_fast_as_the_uplink() -> None:
    """Twice what was tried, until others have sent more."""
    bandwidth = Bandwidth()
    assert bandwidth.claim() == (0, 0)
    pass_by(bandwidth.far.up, 100 * MBIT, 64 * MIB, begin=0.0)
    assert bandwidth.claim()[1] == 0
    pass_by(bandwidth.far.down, 20 * MBIT, 64 * MIB, begin=0.0)
    up, down = bandwidth.claim()
    assert up == pytest.approx(100 * MBIT, rel=0.05)
    assert down == pytest.approx(40 * MBIT, rel=0.05)
    pass_by(bandwidth.far.down, 200 * MBIT, 128 * MIB, begin=100.0)
    assert bandwidth.claim()[1] == pytest.approx(200 * MBIT, rel=0.05)


def test_peers_nearby_count_where_there_are_no_others() -> None:
    bandwidth = Bandwidth()
    pass_by(bandwidth.near.up, 300 * MBIT, 128 * MIB, begin=0.0)
    assert bandwidth.claim()[0] == pytest.approx(300 * MBIT, rel=0.05)
    pass_by(bandwidth.far.up, 10 * MBIT, 32 * MIB, begin=100.0)
    assert bandwidth.claim()[0] == pytest.approx(10 * MBIT, rel=0.05)


def test_a_gauge_tells_the_line_of_payloads_and_not_of_words() -> None:
    meters, ways = Meters(), [True]
    gauge = Gauge(lambda: meters if ways[0] else None)
    step = SLOT / 4
    for number in range(4 * (SETTLE + WINDOW + 2)):
        gauge.wrote(number * step, (number + 1) * step, MIB)
        gauge.came(number * step, (number + 1) * step, MIB // 2)
        gauge.wrote(number * step, number * step, LEAST_PIECE - 1)
    assert meters.up.rate == pytest.approx(MIB / step, rel=0.01)
    assert meters.down.rate == pytest.approx(MIB / 2 / step, rel=0.01)
    ways[0] = False  # by a relay
    gauge.wrote(1000.0, 1001.0, MIB)
    assert meters.up.rate == pytest.approx(MIB / step, rel=0.01)

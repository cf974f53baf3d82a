"""The clocks of two peers are compared by a ping and its answer."""

from __future__ import annotations

import pytest

from shoal.protocol.net.measure.heartbeat import LATEST, SIZE, clock_ahead, clock_for_pong

NOON = 1_800_000_000.0


@pytest.mark.parametrize("off", [0.0, 2.5, -2.5, 86_400.0])
def test_the_difference_is_that_in_the_middle_of_the_trip(off: float) -> None:
    rtt = 0.2
    assert clock_ahead(NOON + off + rtt / 2, rtt, clock_for_pong(NOON)) == pytest.approx(off, abs=0.002)


@pytest.mark.parametrize("body", [b"", b"clock", bytes(SIZE + 1), b"\xff" * SIZE, LATEST.to_bytes(SIZE, "big")])
def test_what_is_no_clock_says_nothing(body: bytes) -> None:
    assert clock_ahead(NOON, 0.1, body) is None


def test_a_clock_before_1970_is_shown_as_such() -> None:
    assert clock_ahead(0.0, 0.0, clock_for_pong(-5.0)) == 0.0

"""Rest: pauses grow while nothing happens, and news end them."""

from __future__ import annotations

import pytest

from shoal.protocol.calm import EXCHANGES, EXCHANGES_MOST, MOST, PROBES, Calm
from shoal.protocol.timers import Timers


def calm_with_timers() -> tuple[Calm, Timers]:
    timers = Timers("membership")
    return Calm(timers), timers


def test_nobody_rests_before_the_first_news() -> None:
    calm, _ = calm_with_timers()
    assert (calm.probe_pause(1e6), calm.exchange_pause(1e6)) == (PROBES, EXCHANGES)


def test_pauses_grow_with_the_time_without_news_up_to_a_bound() -> None:
    calm, _ = calm_with_timers()
    calm.stir(100.0)
    assert calm.probe_pause(105.0) == PROBES
    assert calm.probe_pause(150.0) == pytest.approx(10 * PROBES)
    assert calm.probe_pause(1e5) == MOST * PROBES
    assert calm.exchange_pause(1e5) == EXCHANGES_MOST
    calm.stir(1e5)
    assert calm.probe_pause(1e5 + 5) == PROBES


def test_within_a_round_nobody_rests() -> None:
    calm, _ = calm_with_timers()
    calm.stir(0.0)
    calm.may_rest = False
    assert (calm.probe_pause(1e5), calm.exchange_pause(1e5)) == (PROBES, EXCHANGES)


def test_news_bring_forward_what_was_put_off_and_nothing_else() -> None:
    calm, timers = calm_with_timers()
    timers.arm(0.0, 20.0, "probe")
    timers.arm(0.0, 10.0, "sync")
    calm.stir(5.0)
    assert (timers.due("probe"), timers.due("sync")) == (5.0 + PROBES, 10.0)
    assert not calm.stir(5.5)


def test_at_rest_a_probe_by_either_of_two_is_enough() -> None:
    calm, _ = calm_with_timers()
    calm.stir(0.0)
    assert calm.asked_before(3.0) == 3.0, "while something happens, it is not"
    assert calm.asked_before(1000.0) == 1000.0 - MOST * PROBES

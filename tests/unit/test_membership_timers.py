"""Timers: a live one is recognised once, a stale one never, and the lateness is returned."""

from __future__ import annotations

from shoal.protocol.base.effects import Timer
from shoal.protocol.base.timers import Timers


def test_a_live_timer_is_accepted_once() -> None:
    timers = Timers("core")
    wake = timers.arm(10.0, 2.0, "name", "subject")
    assert wake.after == 2.0
    assert timers.due("name", "subject") == 12.0
    assert timers.accept(12.5, wake.timer) == 0.5
    assert timers.accept(12.5, wake.timer) is None
    assert timers.due("name", "subject") is None


def test_arming_again_makes_the_earlier_one_stale_and_leaves_others_alone() -> None:
    timers = Timers("core")
    first = timers.arm(0.0, 1.0, "name")
    other = timers.arm(0.0, 1.0, "name", "other subject")
    second = timers.arm(0.5, 1.0, "name")
    assert timers.accept(1.0, first.timer) is None
    assert timers.accept(1.0, other.timer) == 0.0
    assert timers.accept(1.5, second.timer) == 0.0


def test_a_disarmed_or_unknown_timer_is_stale() -> None:
    timers = Timers("core")
    wake = timers.arm(0.0, 1.0, "name")
    kept = timers.arm(0.0, 1.0, "kept")
    timers.disarm("name")
    timers.disarm("never armed")
    assert timers.accept(1.0, wake.timer) is None
    assert timers.accept(1.0, Timer("core", "name", 99)) is None
    timers.clear()
    assert timers.accept(1.0, kept.timer) is None

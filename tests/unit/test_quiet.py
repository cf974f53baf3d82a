"""Whom a round asks after, as it waits for them and hears nothing."""

from __future__ import annotations

from shoal.protocol.averaging.quiet import QUIET, Quiet
from shoal.protocol.base.ids import PeerId

ANNA, BORIS = PeerId("anna"), PeerId("boris")


def test_who_is_awaited_and_silent_is_asked_after_ever_more_rarely() -> None:
    quiet = Quiet()
    asked = [step for step in range(100) if quiet.doubted(step * QUIET, [ANNA])]
    assert asked == [1, 2, 4, 8, 16, 32, 64]


def test_who_is_heard_is_not_asked_after_for_a_while() -> None:
    quiet = Quiet()
    assert quiet.doubted(0.0, [ANNA, BORIS]) == []
    quiet.hear(0.6 * QUIET, ANNA)
    assert quiet.doubted(QUIET, [ANNA, BORIS]) == [BORIS]
    assert quiet.doubted(1.7 * QUIET, [ANNA, BORIS]) == [ANNA]
    quiet.hear(1.8 * QUIET, ANNA)
    assert quiet.doubted(3.0 * QUIET, [ANNA, BORIS]) == [ANNA, BORIS]


def test_who_is_not_awaited_is_not_asked_after() -> None:
    quiet = Quiet()
    quiet.hear(0.0, ANNA)
    assert quiet.doubted(9 * QUIET, [BORIS]) == []

"""Rest: pauses grow while nothing happens, and news end them."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.calm import EXCHANGES, EXCHANGES_MOST, MOST, PROBES, Calm
from shoal.protocol.ids import NO_DIGEST, PeerId
from shoal.protocol.members import MemberTable
from shoal.protocol.messages.membership import Entry
from shoal.protocol.messages.status import RunStatus
from shoal.protocol.timers import Timers

STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "matching", 0, 0, None, True, 0, "public")


def calm_in(phase: str) -> tuple[Calm, Timers]:
    status = dataclasses.replace(STATUS, phase=phase)
    timers = Timers("membership")
    return Calm(MemberTable(Entry(PeerId("me"), 0, 0, (), status, False, b"")), timers), timers


def test_nobody_rests_before_the_first_news() -> None:
    calm, _ = calm_in("matching")
    assert (calm.probe_pause(1e6), calm.exchange_pause(1e6)) == (PROBES, EXCHANGES)


@pytest.mark.parametrize("phase", ["matching", "training"])
def test_pauses_grow_with_the_time_without_news_up_to_a_bound(phase: str) -> None:
    calm, _ = calm_in(phase)
    calm.stir(100.0)
    assert calm.probe_pause(105.0) == PROBES
    assert calm.probe_pause(150.0) == pytest.approx(5 * PROBES)
    assert calm.probe_pause(1e5) == MOST * PROBES
    assert calm.exchange_pause(1e5) == EXCHANGES_MOST
    calm.stir(1e5)
    assert calm.probe_pause(1e5 + 5) == PROBES


@pytest.mark.parametrize("phase", ["reducing", "preparing", "applying", "syncing"])
def test_within_a_round_nobody_rests(phase: str) -> None:
    calm, _ = calm_in(phase)
    calm.stir(0.0)
    assert (calm.probe_pause(1e5), calm.exchange_pause(1e5)) == (PROBES, EXCHANGES)


def test_news_bring_forward_what_was_put_off_and_nothing_else() -> None:
    calm, timers = calm_in("matching")
    timers.arm(0.0, 20.0, "probe")
    timers.arm(0.0, 10.0, "sync")
    calm.stir(5.0)
    assert (timers.due("probe"), timers.due("sync")) == (5.0 + PROBES, 10.0)
    assert not calm.stir(5.5)

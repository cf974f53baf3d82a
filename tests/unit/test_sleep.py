"""A machine that was suspended: the clock of the event loop stood still, so the run asks another one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.run import run as running
from shoal.node.run.run import Run
from shoal.protocol.log.keeper import SLEPT


@pytest.mark.asyncio
@pytest.mark.parametrize(("slept", "is_told"), [(0.0, False), (SLEPT - 1.0, False), (SLEPT + 1.0, True)])
async def test_the_member_is_told_once_of_a_long_sleep(
    slept: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, told = [500.0], list[str]()
    monkeypatch.setattr(running, "REPORT_EVERY", 0.001)
    monkeypatch.setattr(running, "_asleep", lambda: asleep[0])
    made: Any = SimpleNamespace(obstacle="", member=SimpleNamespace(phase="training", woke="woke"))
    made.driver, made._report_now = SimpleNamespace(command=told.append, now=lambda: 0.0), "report"
    made._note_running = lambda: None
    reporting = asyncio.create_task(Run._report(cast(Run, made)))
    for reports in (2, 4):
        async with asyncio.timeout(30.0):
            while told.count("report") < reports:
                await asyncio.sleep(0)
        asleep[0] = 500.0 + slept
    reporting.cancel()
    assert told.count("woke") == is_told


def test_while_a_machine_runs_it_does_not_sleep() -> None:
    first = running._asleep()
    assert abs(running._asleep() - first) < 1.0

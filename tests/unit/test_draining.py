"""A node that drains waits for the rounds under way, and for nothing else."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.daemon import draining
from shoal.node.daemon.draining import rounds_end


def run(round: int, **more: Any) -> Any:
    rounds = SimpleNamespace(min_members=2)
    manifest = SimpleNamespace(name=f"run-{round}", rounds=rounds)
    usual = {"is_resting": False, "is_alone": False, "failure": "", "is_finished": False}
    committed = SimpleNamespace(current=SimpleNamespace(round=round))
    return SimpleNamespace(**{"id": round, "manifest": manifest, "committed": committed, **usual, **more})


@pytest.mark.asyncio
async def test_each_open_run_commits_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LOOK", 0.0)
    first, second = runs = [run(3), run(7)]
    waiting = asyncio.create_task(rounds_end(lambda: runs))
    for each in (first, second):
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        each.committed.current.round += 1
    await asyncio.wait_for(waiting, 10)


@pytest.mark.asyncio
@pytest.mark.parametrize("lack", ["is_resting", "is_alone", "failure", "is_finished"])
async def test_a_run_in_which_no_round_will_end_is_not_waited_for(lack: str) -> None:
    await asyncio.wait_for(rounds_end(lambda: [run(3, **{lack: True})]), 10)


@pytest.mark.asyncio
async def test_a_run_that_is_left_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LOOK", 0.0)
    runs = [run(3)]
    waiting = asyncio.create_task(rounds_end(lambda: runs))
    await asyncio.sleep(0)
    runs.clear()
    await asyncio.wait_for(waiting, 10)


@pytest.mark.asyncio
async def test_in_the_end_it_stops_in_any_case(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await asyncio.wait_for(rounds_end(lambda: [run(3)], 0.0), 10)
    assert "the rounds of run-3 are not over" in caplog.text

"""The directory's shell: no error in it ends anything else."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.run import directory
from shoal.node.run.directory import Directory

DEADLINE = 30.0


class Runs:
    """Open runs of which one is broken; counts how often it was looked at."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        return {"broken": SimpleNamespace()}  # which has not even a failure


@pytest.mark.asyncio
async def test_a_mistake_with_one_run_is_logged_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory, "LOOK", 0.0)
    runs, discovery = Runs(), SimpleNamespace(contacts=lambda: ["somebody"], now=lambda: 0.0)
    subject = Directory(cast(Any, discovery), cast(Any, None), runs)
    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(subject.run())
        async with asyncio.timeout(DEADLINE):
            while runs.looks < 5 and not task.done():
                await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
    assert len([each for each in caplog.records if "made a mistake" in each.getMessage()]) == 1

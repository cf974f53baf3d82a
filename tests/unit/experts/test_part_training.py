"""When a node gives up the run of its part: lasting trouble is a failure, passing trouble is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.base.home import Home
from shoal.node.experts import part_training
from shoal.node.experts.part_training import LastingCondition, PartTraining
from shoal.protocol.base.errors import LocalError
from tests.run_kit import id_of
from tests.unit.experts.family_kit import ANNA, FAMILY

RUN = "ab" * 32


def test_what_breaks_off_has_not_lasted() -> None:
    lasting = LastingCondition(5.0)
    assert [lasting.holds(is_now, now) for is_now, now in ((True, 0.0), (False, 4.0), (True, 6.0), (True, 10.0))] == [
        False
    ] * 4
    assert lasting.holds(True, 11.0)


class OneRun:
    """The runs of a node, which is in one."""

    def __init__(self, run: Any) -> None:
        self.open: dict[str, Any] = {RUN: run}
        self.restoring: list[str] = []
        self.left: list[str] = []

    def has(self, run: str) -> bool:
        return run in self.open

    async def leave(self, run: str) -> None:
        self.left.append(run)
        del self.open[run]


def test_a_worker_that_crashes_for_ever_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_training, "HELPLESS", 0.2)
    run = SimpleNamespace(
        failure="",
        trouble="the worker was killed by SIGSEGV; it is started again",
        is_stuck=False,
        committed=SimpleNamespace(current=SimpleNamespace(round=1)),
    )
    runs = OneRun(run)
    assert FAMILY.experts is not None
    part = FAMILY.experts.parts[0]
    sought = PartTraining(FAMILY, id_of(FAMILY), runs, None, None, Home(tmp_path), ANNA.peer, {}, asyncio.Event().wait)  # type: ignore[arg-type]
    sought.run, sought.part = RUN, part.name

    async def published(*_: object) -> None:
        return None

    monkeypatch.setattr(sought, "_new_file", published)

    async def until_it_fails() -> None:
        async with asyncio.timeout(10):
            while True:
                await sought.go_on(part)
                await asyncio.sleep(0.01)

    with pytest.raises(LocalError, match="nothing is trained any more: the worker was killed by SIGSEGV"):
        asyncio.run(until_it_fails())
    assert runs.left == [RUN]
    assert (sought.run, sought.part) == ("", "")

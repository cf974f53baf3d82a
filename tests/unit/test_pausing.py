"""A node whose daily volume is used up pauses its runs, says so, and goes on by itself the next day."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.api.answers import LimitsStatus
from shoal.node.api.status import advice, headline, verdict
from shoal.node.base.exits import Exit
from shoal.node.base.options import NodeSettings
from shoal.node.daemon.guest.pausing import AskedFile, Pausing
from shoal.node.daemon.guest.volume import DAY
from shoal.node.run.runs import Runs
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.system.throttle import Throttle
from tests.unit.test_daily_volume import GB, NOON, Wire, saved

ANNA = PeerId("anna")


class Node:
    """The parts around a pause."""

    def __init__(self, folder: Path) -> None:
        self.wire = Wire()
        self.volume = self.wire.volume(folder)
        self.throttle = Throttle()
        self.did: list[str] = []
        self.runs: Any = SimpleNamespace(paused="", data=SimpleNamespace(is_paused=False), devices_are_free=True)
        self.runs.pause, self.runs.restore, self.runs.free_devices = self.pause, self.restore, self.free_devices
        self.file, self.settings = AskedFile(folder / "pause.json"), NodeSettings(folder)
        self.pausing = self.made()

    def made(self) -> Pausing:
        """As at a start of the node."""
        runs = cast(Runs, self.runs)
        clock = lambda: self.wire.now  # noqa: E731
        return Pausing(self.settings, self.file, self.volume, self.throttle, runs, lambda: [ANNA], clock)

    async def free_devices(self) -> None:
        self.did.append("free")

    async def pause(self) -> None:
        assert self.runs.paused, "nothing is to be entered in the meantime"
        self.did.append("pause")

    async def restore(self, seeds: list[PeerId]) -> None:
        assert not self.runs.paused
        self.did.append(f"restore by {seeds}")

    async def after(self, used: int) -> LimitsStatus:
        self.wire.total = used
        await self.pausing.look()
        await self.settled()
        return self.pausing.as_json()

    async def settled(self) -> None:
        """What is begun and not waited for is done, also what a thread does for it."""
        while others := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.wait(others, timeout=0.01)
            if self.is_held:
                return

    is_held = False  # something is never done by itself


@pytest.mark.asyncio
async def test_it_warns_pauses_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)
    caplog.set_level(logging.INFO)
    status = await node.after(GB // 2)
    assert (status["paused"], status["warnings"], node.did, caplog.records) == (None, [], [], [])

    status = await node.after(GB * 96 // 100)
    [warning] = status["warnings"]
    assert warning["code"] == "volume-nearly-used-up"
    assert "95% of the 1 GB" in warning["words"]
    await node.after(GB * 97 // 100)
    assert (node.did, len(caplog.records)) == ([], 1), "it is said once"

    status = await node.after(GB)
    assert status["paused"] == node.runs.paused
    assert "the 1 GB that may pass a day (--max-per-day) have passed" in node.runs.paused
    assert "goes on by itself at 2024-10-05 00:00 UTC" in node.runs.paused
    assert status["warnings"] == []
    assert status["limits"]["goes_on_at"] == NOON + DAY // 2
    assert node.throttle.is_shut
    assert node.runs.data.is_paused
    assert node.wire.volume(tmp_path).used == GB, "a crash now does not begin anew"

    node.wire.now += DAY // 2 - 1
    await node.after(GB + 10**6)
    assert node.did == ["free", "pause"]
    node.wire.now += 1
    status = await node.after(GB + 10**6)
    assert node.did == ["free", "pause", f"restore by {[ANNA]}"]
    assert not node.throttle.is_shut
    assert not node.runs.data.is_paused
    assert (status["paused"], status["warnings"], status["limits"]["goes_on_at"]) == (None, [], None)
    codes = [getattr(each, "code", None) for each in caplog.records]
    assert codes == ["volume-nearly-used-up", "volume-used-up", None]


@pytest.mark.asyncio
async def test_who_is_started_again_on_the_same_day_pauses_from_the_beginning(tmp_path: Path) -> None:
    before = Node(tmp_path)
    before.wire.total = GB
    saved(before.volume)
    node = Node(tmp_path)
    assert node.runs.paused, "before a run is entered"
    assert node.throttle.is_shut
    await node.pausing.look()
    assert node.did == []
    node.wire.now += DAY
    await node.after(0)
    assert node.did == [f"restore by {[ANNA]}"]


@pytest.mark.asyncio
async def test_the_volume_is_looked_at_while_the_runs_are_entered_again(tmp_path: Path) -> None:
    """Which may take hours, where a run's data are to be fetched first."""
    node = Node(tmp_path)
    await node.after(GB)
    entered, node.is_held = asyncio.Event(), True

    async def restore(seeds: list[PeerId]) -> None:
        node.did.append("begins to enter")
        await entered.wait()

    node.runs.restore = restore
    node.wire.now += DAY
    await node.after(GB)
    assert node.did == ["free", "pause", "begins to enter"]
    await node.after(3 * GB)
    assert node.did == ["free", "pause", "begins to enter", "free", "pause"]
    assert node.throttle.is_shut
    entered.set()


def test_a_pause_is_told_as_what_it_is() -> None:
    status: Any = {
        "state": "SOLO",
        "paused": "paused: the 1 GB have passed",
        "obstacle": "x",
        "runs": [{"phase": "paused"}],
    }
    assert headline(status) == "Paused: the 1 GB have passed."
    assert advice(status) is None
    assert verdict(status) == Exit.OK, "nothing is to be mended, and nothing to be started anew"

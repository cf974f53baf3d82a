"""A node whose daily volume is used up pauses its runs, says so, and goes on by itself the next day."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.api.answers import LimitsStatus, Today
from shoal.node.api.status import advice, headline, verdict
from shoal.node.base.exits import Exit
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import NOTES
from shoal.node.daemon.guest import pausing
from shoal.node.daemon.guest.pausing import LEAVE_AGAIN, LOOK_AT_MACHINE, AskedFile, Pausing
from shoal.node.daemon.guest.rules import Manners, Seen
from shoal.node.daemon.guest.today import TodayCount
from shoal.node.daemon.guest.volume import DAY
from shoal.node.run.runs import Runs
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.system.throttle import Throttle
from tests.unit.test_daily_volume import GB, NOON, Wire, saved

ANNA = PeerId("anna")


class Node:
    """The parts around a pause."""

    def __init__(self, folder: Path) -> None:
        self.knows = True
        self.wire = Wire()
        self.volume = self.wire.volume(folder)
        self.throttle = Throttle()
        self.did: list[str] = []
        data = SimpleNamespace(is_paused=False)
        self.runs: Any = SimpleNamespace(paused="", open={}, data=data, devices_are_free=True, unsaved=[])
        self.runs.pause, self.runs.restore, self.runs.free_devices = self.pause, self.restore, self.free_devices
        self.machine: Any = SimpleNamespace(look=self.look, unknown={}, knows=lambda _: self.knows, close=self.close)
        self.today = TodayCount(folder / "today.json", self.done, lambda: self.wire.now)
        self.seen = Seen()
        self.file, self.settings = AskedFile(folder / "pause.json"), NodeSettings(folder)
        self.pausing = self.made()

    def made(self) -> Pausing:
        """As at a start of the node."""
        runs = cast(Runs, self.runs)
        clock = lambda: self.wire.now  # noqa: E731
        return Pausing(
            self.settings, self.file, self.volume, self.throttle, runs, lambda: [ANNA], self.machine, self.today, clock
        )

    def done(self) -> Today:
        return {"rounds": 0, "sent": self.wire.total, "received": 0}

    async def look(self, manners: Manners) -> Seen:
        return self.seen

    async def close(self) -> None:
        self.did.append("close the machine")

    async def free_devices(self) -> None:
        self.did.append("free")

    async def pause(self) -> None:
        self.did.append("pause")

    async def restore(self, seeds: list[PeerId]) -> None:
        assert not self.runs.paused
        self.did.append(f"restore by {seeds}")

    async def after(self, used: int) -> LimitsStatus:
        self.wire.total = used
        self.pausing.look()
        await self.settled()
        return self.pausing.as_json()

    async def settled(self) -> None:
        """What is begun and not waited for is done, also what a thread does for it."""
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > 1 + self.held:
                await asyncio.sleep(0)

    held = 0  # tasks that are never done by themselves


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
    node.pausing.look()
    await node.settled()
    assert node.did == []
    node.wire.now += DAY
    await node.after(0)
    assert node.did == [f"restore by {[ANNA]}"]


@pytest.mark.asyncio
async def test_the_volume_is_looked_at_while_the_runs_are_entered_again(tmp_path: Path) -> None:
    """Which may take hours, where a run's data are to be fetched first."""
    node = Node(tmp_path)
    await node.after(GB)
    entered, node.held = asyncio.Event(), 1

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


@pytest.mark.asyncio
async def test_a_person_pauses_a_node_for_a_time_and_that_is_kept_over_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path)
    status = await node.pausing.pause(7200.0)
    assert (status["paused"], status["codes"], status["freed"]) == (True, ["asked"], True)
    assert (status["since"], status["until"]) == (NOON, NOON + 7200)
    await node.settled()
    assert node.did == ["free", "pause"]
    assert node.throttle.is_shut

    again = Node(tmp_path)
    assert again.pausing.status()["codes"] == ["asked"], "before a run is entered"
    again.wire.now += 7200
    await again.after(0)
    assert again.did == [f"restore by {[ANNA]}"]
    assert again.pausing.status() == {
        **{"paused": False, "reasons": [], "codes": [], "since": None, "until": None, "freed": False},
        **{"left": False, "unsaved": []},
    }


@pytest.mark.asyncio
async def test_who_pauses_a_node_is_told_of_a_state_that_is_only_in_memory(tmp_path: Path) -> None:
    """It is known once the runs are left, so the answer waits for that as well."""
    node, unsaved = Node(tmp_path), {"run": "1b" * 32, "name": "stdlib", "words": "its state is only in memory: full"}

    async def cannot_save() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        node.runs.unsaved = [unsaved]

    node.runs.pause = cannot_save
    status = await node.pausing.pause()
    assert (status["freed"], status["left"], status["unsaved"]) == (True, True, [unsaved])
    assert (await node.pausing.pause())["unsaved"] == [unsaved], "also if it is asked again"
    assert node.pausing.as_json()["pause"]["unsaved"] == [unsaved], "and in `status`"


@pytest.mark.asyncio
async def test_runs_that_are_left_slowly_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, left = Node(tmp_path), asyncio.Event()

    async def slow() -> None:
        await left.wait()

    monkeypatch.setattr(pausing, "LEFT_WITHIN", 0.01)
    node.runs.pause = slow
    status = await node.pausing.pause()
    assert (status["freed"], status["left"]) == (True, False)
    left.set()
    await node.settled()
    assert node.pausing.status()["left"]


@pytest.mark.asyncio
async def test_a_person_ends_a_pause_but_not_what_else_holds(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.pausing.pause()
    assert (await node.pausing.resume())["paused"] is False
    await node.settled()
    assert node.did == ["free", "pause", f"restore by {[ANNA]}"], "it is left before it is entered again"
    assert not (tmp_path / "pause.json").exists()
    node.wire.total = GB
    await node.pausing.pause()
    assert (await node.pausing.resume())["codes"] == ["volume"]


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
async def test_a_pause_of_no_sensible_length_is_refused(tmp_path: Path, seconds: float) -> None:
    node = Node(tmp_path)
    with pytest.raises(LocalError, match="give more than nothing"):
        await node.pausing.pause(seconds)
    assert node.did == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "note",
    [
        '{"since": "x", "until": null}',
        '{"since": 1e18, "until": null}',
        '{"since": NaN, "until": null}',
        '{"since": 1800000000, "until": 1e18}',
        '{"since": 1800000000, "until": NaN}',
        '{"since": -1, "until": 5}',
        "[]",
        "",
    ],
)
async def test_a_damaged_record_of_a_pause_holds_until_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, note: str
) -> None:
    (tmp_path / "pause.json").write_text(note)
    node = Node(tmp_path)
    status = node.pausing.status()
    assert (status["codes"], status["until"]) == (["asked"], None)
    assert status["reasons"][0].endswith("the note of when is damaged; until `shoal resume`")
    assert [getattr(each, "code", None) for each in caplog.records] == ["pause-damaged"]
    assert (await node.pausing.resume())["codes"] == []
    await node.settled()
    assert not Node(tmp_path).pausing.status()["paused"]


@pytest.mark.asyncio
async def test_a_record_of_a_pause_that_cannot_be_read_holds_until_resume(tmp_path: Path) -> None:
    (tmp_path / "pause.json").mkdir()
    assert Node(tmp_path).pausing.status()["codes"] == ["asked"]


@pytest.mark.asyncio
async def test_who_resumes_while_the_devices_are_freed_is_not_paused_after_a_restart(tmp_path: Path) -> None:
    node, freed = Node(tmp_path), asyncio.Event()

    async def free_devices() -> None:
        await freed.wait()

    node.runs.free_devices = free_devices
    pause = asyncio.create_task(node.pausing.pause())
    async with asyncio.timeout(10):
        while not (tmp_path / "pause.json").exists():
            await asyncio.sleep(0)
    await node.pausing.resume()
    freed.set()
    await pause
    assert not Node(tmp_path).pausing.status()["paused"]
    await node.settled()


@pytest.mark.asyncio
async def test_the_machine_is_looked_at_before_a_run_is_entered_and_settings_count_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seen = Seen(on_battery=True)
    assert not node.pausing.has_looked.is_set()
    assert (await node.after(0))["pause"]["codes"] == []
    assert node.pausing.has_looked.is_set()
    node.pausing.apply(NodeSettings(tmp_path, only_on_mains=True, max_up=10**6, max_per_day=2 * GB))
    assert (await node.after(GB))["pause"]["codes"] == ["on-battery"]
    assert node.throttle.up.rate == 10**6
    node.pausing.apply(NodeSettings(tmp_path))
    status = await node.after(3 * GB)
    assert (status["pause"]["codes"], status["limits"]["max_up"], status["limits"]["max_per_day"]) == ([], None, None)
    assert node.did == ["free", "pause", f"restore by {[ANNA]}"]


@pytest.mark.asyncio
async def test_a_change_of_a_limit_ends_no_pause(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seen = Seen(on_battery=True)
    node.pausing.apply(NodeSettings(tmp_path, only_on_mains=True))
    await node.after(0)
    node.pausing.apply(NodeSettings(tmp_path, only_on_mains=True, max_up=10**6))
    assert (await node.after(0))["pause"]["codes"] == ["on-battery"]
    assert node.did == ["free", "pause"]


@pytest.mark.asyncio
async def test_no_run_is_entered_before_what_the_rules_need_was_measured(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.knows = False
    await node.after(0)
    assert not node.pausing.has_looked.is_set()
    node.knows, node.wire.now = True, node.wire.now + LOOK_AT_MACHINE
    await node.after(0)
    assert node.pausing.has_looked.is_set()


@pytest.mark.asyncio
async def test_rules_hold_while_the_machine_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, held = Node(tmp_path), asyncio.Event()

    async def look(manners: Manners) -> Seen:
        await held.wait()
        return Seen()

    monkeypatch.setattr(pausing, "LOOKED_WITHIN", 0.0)
    monkeypatch.setattr(pausing, "LOOK", 0.0)
    node.machine.look = look
    running = asyncio.create_task(node.pausing.run())
    async with asyncio.timeout(10):
        await node.pausing.has_looked.wait()
        node.wire.total = GB
        while node.did != ["free", "pause"]:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.asyncio
async def test_a_disk_that_hangs_delays_no_pause_and_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, answers = Node(tmp_path), threading.Event()
    monkeypatch.setattr(pausing, "DISK_ANSWERS", 0.01)
    NOTES.offer(answers.wait)
    try:
        async with asyncio.timeout(10):
            assert (await node.pausing.pause())["paused"]
            await node.settled()
            assert node.did == ["free", "pause"]
            running = asyncio.create_task(node.pausing.run())
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
    finally:
        answers.set()


@pytest.mark.asyncio
async def test_runs_that_could_not_be_left_are_left_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)

    async def fails() -> None:
        node.did.append("fails")
        raise RuntimeError("of the test")

    node.runs.open, node.runs.pause = {"a run": None}, fails
    await node.after(GB)
    await node.after(GB)
    assert node.did == ["free", "fails"], "not at once"
    assert "not all runs can be left; trying again in 30 s" in caplog.text
    node.runs.pause, node.wire.now = node.pause, node.wire.now + LEAVE_AGAIN
    await node.after(GB)
    assert node.did == ["free", "fails", "free", "pause"]
    node.runs.open, node.wire.now = {}, node.wire.now + LEAVE_AGAIN
    await node.after(GB)
    assert node.did == ["free", "fails", "free", "pause"]


@pytest.mark.asyncio
async def test_a_rule_that_can_have_no_effect_is_said_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.machine.unknown = {"yield-gpu": "nobody answers"}
    for _ in range(3):
        node.wire.now += 60
        status = await node.after(0)
    words = "--yield-gpu has no effect here: nobody answers"
    assert status["warnings"] == [{"code": "rule-without-effect", "words": words}]
    assert [each.getMessage() for each in caplog.records] == [words]


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

"""The shell around the cores: effects in order, commands from within events, and bugs of our own."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.node.base.disk import Disk
from shoal.node.base.pools import NOTES, RECORDS
from shoal.node.run.driver import Driver
from shoal.node.run.payload_sources import PayloadSources
from shoal.node.run.timelines import Timelines
from shoal.protocol.averaging.events import Behind
from shoal.protocol.base.effects import Blamed, Effect, Event, Persist, Send, Tell, Timer, Wake, Withdraw
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.base.wire import Message
from shoal.protocol.member.member import Member
from shoal.protocol.membership.members import PeerDown
from shoal.protocol.messages.averaging import Call, Contribution, Made, Mean, Table
from shoal.protocol.messages.membership import Entry, RunStatus, Summary
from shoal.protocol.messages.node import GetManifest
from shoal.protocol.net.bulk.backlog import LatePayload
from tests.limits import no_more_files
from tests.simulation.versions import Versions
from tests.unit.disk_kit import fill_disk

ANNA, BEN = PeerId("anna"), PeerId("ben")
STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "syncing", 0, 0, None, True, 0, 0, "unknown")
ENTRY = Entry(PeerId("me"), 0, 0, (), STATUS, False, b"")


MEAN = Mean(0, 5, 0, Made(NO_DIGEST, b"\x01", 0, PeerId("owner"), 1, b""), b"mean")


class Happened(Event):
    """Something for the application."""


class FakeMember:
    """Answers every input with the next of its prepared effects."""

    me = PeerId("me")
    phase = "training"
    is_applying = False

    def __init__(self, *answers: list[Effect]) -> None:
        self.waiting_for = list
        self.base_round: int | None = None
        self.answers = list(answers)
        self.fired: list[Timer] = []
        self.kept_rounds: list[int] = []
        self.steps: list[str] = []

    def step_aside(self, now: float) -> list[Effect]:
        self.steps.append("aside")
        return [Send(ANNA, Summary(ENTRY, (), False))]

    def come_back(self, now: float) -> list[Effect]:
        self.steps.append("back")
        return []

    def kept(self, now: float, round: int) -> list[Effect]:
        self.kept_rounds.append(round)
        return []

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        raise RemoteError("nonsense", sender)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        self.fired.append(timer)
        if timer.name == "blame":
            raise RemoteError("nonsense", ANNA)
        return []

    def link_up(self, now: float, peer: PeerId) -> list[Effect]:
        raise RemoteError("nonsense", peer)

    def step(self, now: float) -> list[Effect]:
        return self.answers.pop(0)


class Shell:
    """A driver, and what it did."""

    def __init__(self, folder: Path, *answers: list[Effect]) -> None:
        self.member = FakeMember(*answers)
        self.done: list[Any] = []
        self.failures: list[Exception] = []
        self.disk = Disk(folder)
        self.sources = PayloadSources(Versions())
        self.late: list[LatePayload | None] = []
        self.driver = Driver(
            cast(Member, self.member),
            folder,
            self.disk,
            self.sources,
            self.send,
            self.told,
            self.failures.append,
        )

    def send(self, to: PeerId, message: Message, late: LatePayload | None) -> None:
        self.done.append((to, message))
        self.late.append(late)

    def told(self, event: Event) -> None:
        self.done.append(event)
        if self.member.answers:
            self.driver.command(self.member.step)


def hang(shell: Shell) -> threading.Event:
    """Have its disk hang until this is set, or for half a minute."""
    released, put = threading.Event(), shell.disk.put

    def hanging(name: str, record: Message) -> None:
        released.wait(30.0)
        put(name, record)

    shell.disk.put = hanging  # type: ignore[method-assign]
    return released


def asking(prefix: str) -> GetManifest:
    return GetManifest(prefix)


@pytest.mark.asyncio
async def test_effects_of_a_nested_command_come_after_those_that_wait(tmp_path: Path) -> None:
    event = Happened()
    shell = Shell(tmp_path, [Tell(event), Send(ANNA, asking("first"))], [Send(ANNA, asking("second"))])
    shell.driver.command(shell.member.step)
    assert shell.done == [event, (ANNA, asking("first")), (ANNA, asking("second"))]


@pytest.mark.asyncio
async def test_a_record_is_on_disk_before_the_message_leaves(tmp_path: Path) -> None:
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    seen: list[dict[str, Message]] = []
    shell.driver._send = lambda to, message, late: seen.append(Disk(tmp_path).load())
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert seen == [{"vote": asking("kept")}]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["means", "result"])
async def test_nothing_but_a_record_waits_for_means(tmp_path: Path, name: str) -> None:
    """A record waits for our own means, so that whoever has our vote has them; and not for those of a result."""
    vote = Persist("vote", asking("kept"))
    shell = Shell(tmp_path, [Persist(name, MEAN), Send(ANNA, asking("first"))], [vote, Send(ANNA, asking("second"))])
    released, put = threading.Event(), shell.disk.put
    written = list[str]()

    def hanging(name: str, record: Message) -> None:
        if name != "vote":
            released.wait(30.0)
        written.append(name)
        put(name, record)

    shell.disk.put = hanging  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    assert shell.done == [(ANNA, asking("first"))]
    shell.driver.command(shell.member.step)
    if name == "result":
        writing = shell.driver._writing
        assert writing is not None
        await writing
        assert shell.done[1:] == [(ANNA, asking("second"))]
    released.set()
    await shell.driver.settled()
    assert written == (["means", "vote"] if name == "means" else ["vote", "result"])
    assert shell.done[1:] == [(ANNA, asking("second"))]


@pytest.mark.asyncio
async def test_a_mean_leaves_when_it_is_written_and_all_else_goes_on(tmp_path: Path) -> None:
    """Else others decide with what only a process has that may be killed; who asks for it waits for it, too."""
    other = replace(MEAN, chunk=1)
    own: list[Effect] = [Persist("means", MEAN), Send(ANNA, MEAN), Send(ANNA, asking("first"))]
    shell = Shell(tmp_path, own, [Send(BEN, MEAN), Send(BEN, other)])
    released = hang(shell)
    shell.driver.command(shell.member.step)
    shell.driver.command(shell.member.step)
    assert shell.done == [(ANNA, asking("first")), (BEN, other)]
    released.set()
    await shell.driver.settled()
    assert shell.done[2:] == [(ANNA, MEAN), (BEN, MEAN)]


@pytest.mark.asyncio
async def test_means_that_came_meanwhile_are_written_at_one_visit_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the disk is full in the middle of them."""
    monkeypatch.setattr("shoal.node.base.disk.AGAIN", (0.01, 0.02))
    visits, run = list[object](), RECORDS.run

    async def counted(function: Callable[[], None]) -> None:
        visits.append(function)
        await run(function)

    monkeypatch.setattr(RECORDS, "run", counted)
    means = [replace(MEAN, chunk=chunk) for chunk in range(4)]
    shell = Shell(tmp_path, [*(Persist("means", mean) for mean in means), *(Send(ANNA, mean) for mean in means)])
    tried, written = list[int](), list[int]()

    def full_once(name: str, record: Message) -> None:
        assert isinstance(record, Mean)
        tried.append(record.chunk)
        if tried == [0, 1, 2]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(record.chunk)

    shell.disk.put = full_once  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert (written, len(visits)) == ([0, 1, 2, 3], 2)
    assert shell.done == [(ANNA, mean) for mean in means]


@pytest.mark.asyncio
async def test_a_mean_that_cannot_be_written_never_leaves(tmp_path: Path) -> None:
    shell = Shell(tmp_path, [Persist("means", MEAN), Send(ANNA, MEAN)])

    def fail(name: str, record: Message) -> None:
        raise OSError(errno.EIO, "broken")

    shell.disk.put = fail  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert shell.failures
    assert not shell.done


@pytest.mark.asyncio
async def test_a_bug_while_a_written_mean_leaves_ends_the_run(tmp_path: Path) -> None:
    """Else nothing more would be written, and votes would leave before our means."""
    shell = Shell(tmp_path, [Persist("means", MEAN), Send(ANNA, MEAN)])

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    shell.driver._send = fails  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert [type(each) for each in shell.failures] == [ZeroDivisionError]


@pytest.mark.asyncio
async def test_the_member_is_told_when_a_result_is_kept(tmp_path: Path) -> None:
    table = Table(0, 5, (MEAN.made,))
    shell = Shell(tmp_path, [Persist("means", table), Persist("result", MEAN), Persist("result", table)])
    released = hang(shell)
    shell.driver.command(shell.member.step)
    assert shell.member.kept_rounds == []
    released.set()
    await shell.driver.settled()
    assert shell.member.kept_rounds == [5]


@pytest.mark.asyncio
async def test_a_result_is_written_once_it_is_applied(tmp_path: Path) -> None:
    """Before that the writing would take the processor from those on this machine who still decode."""
    table = Table(0, 5, (MEAN.made,))
    shell = Shell(tmp_path, [Persist("result", MEAN), Persist("result", table)], [])
    shell.member.is_applying = True
    shell.driver.command(shell.member.step)
    await asyncio.sleep(0.05)
    assert shell.disk.load() == {}
    shell.member.is_applying = False
    shell.driver.command(shell.member.step)
    await shell.driver.results_written()
    assert shell.member.kept_rounds == [5]
    assert shell.disk.load() == {"result": table}


@pytest.mark.asyncio
async def test_who_ends_while_a_result_is_applied_has_it_written(tmp_path: Path) -> None:
    """Others may need it, and nobody will say any more that it is applied."""
    shell = Shell(tmp_path, [Persist("result", MEAN), Persist("result", Table(0, 5, (MEAN.made,)))])
    shell.member.is_applying = True
    shell.driver.command(shell.member.step)
    shell.driver.end()
    await shell.driver.settled()
    shell.driver.close()
    assert "result" in shell.disk.load()


@pytest.mark.asyncio
async def test_results_of_a_branch_that_is_left_are_not_written(tmp_path: Path) -> None:
    switch = Persist("switch", asking("the next branch"))
    shell = Shell(tmp_path, [Persist("result", MEAN), Persist("result", MEAN)], [switch])
    released = hang(shell)
    shell.driver.command(shell.member.step)
    waiting = shell.driver.results_written()
    await asyncio.sleep(0)
    shell.driver.command(shell.member.step)
    assert await asyncio.wait_for(waiting, 30.0) is False, "whoever waits for them learns it"
    released.set()
    await shell.driver.settled()
    assert shell.disk.load() == {"result": MEAN, "switch": switch.record}, "what had begun came to its end"


@pytest.mark.asyncio
async def test_a_result_that_is_held_back_is_dropped_with_its_branch_and_whoever_waits_learns_it(
    tmp_path: Path,
) -> None:
    switch = Persist("switch", asking("the next branch"))
    shell = Shell(tmp_path, [Persist("result", MEAN)], [switch], [])
    shell.member.is_applying = True
    shell.driver.command(shell.member.step)
    waiting = shell.driver.results_written()
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    shell.member.is_applying = False
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert await asyncio.wait_for(waiting, 30.0) is False
    assert shell.disk.load() == {"switch": switch.record}


@pytest.mark.asyncio
async def test_a_result_is_written_though_the_run_has_failed_here(tmp_path: Path) -> None:
    """Applying it may be what has failed, on all nodes of a machine at once: others need it then."""
    shell = Shell(tmp_path, [Persist("result", MEAN)])
    shell.member.is_applying = True
    shell.driver.command(shell.member.step)
    shell.driver.close()
    await shell.driver.settled()
    assert shell.disk.load() == {"result": MEAN}


@pytest.mark.asyncio
async def test_large_means_go_to_the_disk_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.run.driver.MEANS_AT_ONCE", 2 * len(MEAN.payload))
    visits, run = list[object](), RECORDS.run

    async def counted(function: Callable[[], None]) -> None:
        visits.append(function)
        await run(function)

    monkeypatch.setattr(RECORDS, "run", counted)
    shell = Shell(tmp_path, [Persist("means", replace(MEAN, chunk=chunk)) for chunk in range(5)])
    shell.driver.command(shell.member.step)
    await shell.driver.settled()
    assert len(visits) == 3


@pytest.mark.asyncio
async def test_what_waits_for_records_waits_for_no_later_ones(tmp_path: Path) -> None:
    """A run that decides all the time would never have a checkpoint."""
    first, second = MEAN, replace(MEAN, round=6)
    shell = Shell(tmp_path, [Persist("result", first)], [Persist("result", second)])
    released, put = threading.Event(), shell.disk.put

    def hangs_at_the_second(name: str, record: Message) -> None:
        assert record == first or released.wait(30.0)
        put(name, record)

    shell.disk.put = hangs_at_the_second  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    written = shell.driver.results_written()
    shell.driver.command(shell.member.step)
    await asyncio.wait_for(written, 30.0)
    assert not released.is_set()
    released.set()
    await shell.driver.settled()


@pytest.mark.asyncio
async def test_what_says_nothing_of_votes_passes_a_record_that_is_being_written(tmp_path: Path) -> None:
    """Who is there is answered while the disk is slow; what may tell of the vote comes after it, in its order."""
    ping, timer = Summary(ENTRY, (), False), Timer("rounds", "tick", 1)
    effects: list[Effect] = [Persist("vote", asking("kept")), Send(ANNA, asking("first"))]
    shell = Shell(tmp_path, effects, [Send(ANNA, asking("second")), Send(ANNA, ping), Wake(0.0, timer)])
    written, put = threading.Event(), shell.disk.put

    def slow(name: str, record: Message) -> None:
        assert written.wait(30.0)
        put(name, record)

    shell.disk.put = slow  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    shell.driver.command(shell.member.step)
    while not shell.member.fired:
        await asyncio.sleep(0)
    assert shell.done == [(ANNA, ping)]
    written.set()
    await shell.driver.settled()
    assert shell.done == [(ANNA, ping), (ANNA, asking("first")), (ANNA, asking("second"))]


@pytest.mark.asyncio
async def test_a_record_that_cannot_be_written_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With real files: the process may open no more, and then one more again."""
    monkeypatch.setattr("shoal.node.base.disk.AGAIN", (0.01, 0.02))
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    await RECORDS.run(list)  # its thread is there
    with no_more_files():
        shell.driver.command(shell.member.step)
        while not shell.driver.trouble:
            await asyncio.sleep(0.001)
        assert "Too many open files" in shell.driver.trouble
        assert shell.done == []
    await shell.driver.settled()
    assert shell.done == [(ANNA, asking("sent"))]
    assert Disk(tmp_path).load() == {"vote": asking("kept")}
    assert shell.driver.trouble == ""
    assert shell.failures == []
    assert [record.__dict__["code"] for record in caplog.records] == ["record-waits"]


@pytest.mark.asyncio
async def test_a_broken_disk_ends_the_run_and_so_does_a_full_one_when_we_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Shell(tmp_path / "gone", [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    gone.driver.command(gone.member.step)
    await gone.driver.settled()
    assert "No such file or directory" in str(gone.failures[0])
    fill_disk(monkeypatch)
    full = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    full.driver.end()
    full.driver.command(full.member.step)
    await full.driver.settled()
    assert len(full.failures) == 1
    assert gone.done == full.done == []


@pytest.mark.asyncio
async def test_a_record_that_is_written_does_not_hide_that_another_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.base.disk.AGAIN", (0.01, 0.02))
    shell = Shell(tmp_path, [Persist("result", MEAN), Persist("vote", asking("kept"))])
    put, is_full = shell.disk.put, True

    def full_for_votes(name: str, record: Message) -> None:
        if name == "vote" and is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(name, record)

    shell.disk.put = full_for_votes  # type: ignore[method-assign]
    shell.driver.command(shell.member.step)
    while "result" not in shell.disk.load() or not shell.driver.trouble:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert shell.driver.trouble
    is_full = False
    await shell.driver.settled()
    assert shell.driver.trouble == ""


@pytest.mark.asyncio
async def test_what_would_be_said_while_no_record_can_be_written_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not what is told here, nor a later record."""
    monkeypatch.setattr("shoal.node.base.disk.AGAIN", (0.01, 0.02))
    disk = pytest.MonkeyPatch()
    fill_disk(disk)
    final, event = MEAN, Happened()
    later: list[Effect] = [
        Send(ANNA, asking("stale")),
        Send(ANNA, final),
        Persist("other", asking("kept")),
        Tell(event),
    ]
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))], later)
    left: list[tuple[Message, bool]] = []
    shell.member.left = lambda now, to, message, sent: left.append((message, sent))  # type: ignore[attr-defined]
    shell.driver.command(shell.member.step)
    while not shell.driver.trouble:
        await asyncio.sleep(0.001)
    shell.driver.command(shell.member.step)
    disk.undo()
    await shell.driver.settled()
    assert shell.done == [(ANNA, asking("sent")), event]
    assert left == [(final, False)]
    assert sorted(Disk(tmp_path).load()) == ["other", "vote"]


@pytest.mark.asyncio
async def test_the_others_are_told_to_go_on_without_us_while_no_record_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.base.disk.AGAIN", (0.01, 0.02))
    monkeypatch.setattr("shoal.node.run.driver.STEPS_ASIDE", 0.05)
    disk = pytest.MonkeyPatch()
    fill_disk(disk)
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    shell.driver.command(shell.member.step)
    while not shell.done:
        await asyncio.sleep(0.001)
    assert shell.done == [(ANNA, Summary(ENTRY, (), False))], "it waits for no record"
    disk.undo()
    await shell.driver.settled()
    assert shell.member.steps == ["aside", "back"]
    assert shell.done[1:] == [(ANNA, asking("sent"))]


@pytest.mark.asyncio
async def test_what_waits_for_a_disk_that_hangs_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.run.driver.MOST_WAITING", 3)
    shell = Shell(tmp_path, [Persist("vote", asking("kept"))], [Send(ANNA, asking(str(place))) for place in range(9)])
    released = hang(shell)
    shell.driver.command(shell.member.step)
    shell.driver.command(shell.member.step)
    released.set()
    await shell.driver.settled()
    assert shell.done == [(ANNA, asking(str(place))) for place in range(3)]


@pytest.mark.asyncio
async def test_every_record_is_written_in_order_and_before_all_that_follows(tmp_path: Path) -> None:
    several: list[list[Effect]] = [
        [Persist("vote", asking(str(each))), Send(ANNA, asking(f"sent {each}"))] for each in range(9)
    ]
    shell = Shell(tmp_path, *several)
    written, put = list[Message](), shell.disk.put

    def noted(name: str, record: Message) -> None:
        written.append(record)
        put(name, record)

    shell.disk.put = noted  # type: ignore[method-assign]
    released = hang(shell)
    for _ in several:
        shell.driver.command(shell.member.step)
    assert shell.done == []
    released.set()
    await shell.driver.settled()
    assert written == [asking(str(each)) for each in range(9)]
    assert shell.done == [(ANNA, asking(f"sent {each}")) for each in range(9)]


@pytest.mark.asyncio
async def test_what_is_told_while_a_disk_hangs_has_a_bound_and_the_run_is_opened_again_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But whoever can make a peer's mistakes, or be ahead, cannot use it up: these are told at once."""
    monkeypatch.setattr("shoal.node.run.driver.MOST_WAITING", 3)
    behind, blamed = Behind(7), Blamed(ANNA, "nonsense")
    shell = Shell(tmp_path, [Persist("vote", asking("kept"))], [Tell(behind), Tell(blamed)] * 9)
    released = hang(shell)
    for _ in range(2):
        shell.driver.command(shell.member.step)
    assert shell.done == [behind, blamed] * 9
    for _ in range(6):
        shell.driver.command(lambda now: [Tell(Happened())])
    assert shell.failures == []
    shell.driver.command(lambda now: [Tell(Happened())])
    assert [is_temporary(error) for error in shell.failures] == [True]
    assert "does not answer" in str(shell.failures[0])
    released.set()
    await shell.driver.settled()
    assert shell.done == [behind, blamed] * 9


@pytest.mark.asyncio
@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_disk_that_hangs_does_not_keep_a_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    monkeypatch.setattr("shoal.node.run.driver.PARTING", 0.1)
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), Send(ANNA, asking("sent"))])
    released = hang(shell)
    try:
        if ends_first:
            shell.driver.end()
        shell.driver.command(shell.member.step)
        await asyncio.sleep(0)  # it is being written
        if not ends_first:
            shell.driver.end()
        async with asyncio.timeout(20.0):
            await shell.driver.settled()
    finally:
        released.set()
    assert [f"vote has not been written to {tmp_path} in 0.1 s" in str(error) for error in shell.failures] == [True]
    assert shell.done == []


@pytest.mark.asyncio
async def test_no_timer_that_is_still_to_come_keeps_a_run_that_was_left(tmp_path: Path) -> None:
    shell = Shell(tmp_path, [Wake(60.0, Timer("rounds", "tick", 1))])
    shell.driver.command(shell.member.step)
    there = weakref.ref(shell.driver)
    shell.driver.close()
    del shell
    gc.collect()
    assert there() is None


@pytest.mark.asyncio
async def test_timers_fire_and_a_closed_driver_is_silent(tmp_path: Path) -> None:
    timer = Timer("rounds", "tick", 1)
    shell = Shell(tmp_path, [Wake(0.0, timer)], [Wake(0.0, timer)])
    shell.driver.command(shell.member.step)
    while not shell.member.fired:
        await asyncio.sleep(0)
    assert shell.member.fired == [timer]
    shell.driver.command(shell.member.step)
    shell.driver.close()
    for _ in range(10):
        await asyncio.sleep(0)
    assert shell.member.fired == [timer]


@pytest.mark.asyncio
async def test_a_bad_message_is_its_senders_fault_and_a_bug_is_ours(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with pytest.raises(RemoteError, match="nonsense"):
        shell.driver.receive(ANNA, asking("x"))
    assert shell.failures == []
    shell.driver.command(shell.member.step)  # nothing is prepared: IndexError, a bug
    assert [type(error) for error in shell.failures] == [IndexError]
    shell.driver.receive(ANNA, asking("x"))  # silent from now on


@pytest.mark.asyncio
async def test_what_a_peer_is_blamed_for_in_passing_is_said_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A timer or a link has nobody above it that could catch the error."""
    shell = Shell(tmp_path)
    escaped: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(context))
    shell.driver._carry_out(Wake(0.0, Timer("rounds", "blame", 1)))
    while not shell.member.fired:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    shell.driver.link(ANNA, up=True)
    assert escaped == []
    assert shell.failures == []
    assert [record.getMessage() for record in caplog.records] == ["peer anna: nonsense"] * 2


@pytest.mark.asyncio
async def test_what_comes_and_leaves_is_on_the_timeline_and_kept_when_all_is_over(tmp_path: Path) -> None:
    ask, final = Call(0, 5), MEAN
    shell = Shell(tmp_path, [Send(ANNA, ask), Send(ANNA, final), Tell(PeerDown(ANNA))], [], [])
    member = shell.member
    member.base_round = 4
    member.receive = lambda now, sender, message: []  # type: ignore[method-assign]
    member.left = lambda now, to, message, sent: None  # type: ignore[attr-defined]
    shell.driver.receive(ANNA, ask)
    shell.driver.command(member.step)
    shell.driver.left(ANNA, final, sent=False)  # dropped: it has not left
    shell.driver.left(ANNA, final, sent=True)
    shown = shell.driver.timelines.find(shell.driver.now(), 5)
    assert [(each["way"], each["kind"], each["count"], each["bytes"]) for each in shown["traffic"]] == [
        ("sent", "call", 1, 0),
        ("sent", "mean", 1, 4),
    ]
    assert [each["what"] for each in shown["events"]] == ["lost"]
    member.base_round = 5
    shell.driver.command(member.step)
    shell.driver.close()
    assert NOTES.join(10.0)
    assert Timelines(PeerId("me"), tmp_path).find(0.0, 5)["traffic"] == shown["traffic"]


@pytest.mark.asyncio
async def test_a_late_payload_is_bound_to_its_source_in_turn_and_withdrawn_in_turn(tmp_path: Path) -> None:
    late = Send(ANNA, Contribution(0, 5, 3, 0, 1, NO_DIGEST, b""), is_late=True)
    shell = Shell(tmp_path, [Persist("vote", asking("kept")), late, late, Withdraw(0, 5), late, Send(ANNA, MEAN)])
    shell.sources.submit(5, lambda chunk: b"chunk %d" % chunk)
    shell.driver.command(shell.member.step)
    assert not shell.late, "nothing leaves before the vote is on disk"
    await shell.driver.settled()
    first, second, third, mean = shell.late
    assert mean is None
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.make(), first.is_wanted(), second.is_wanted()) == (b"chunk 3", False, False)
    assert third.is_wanted()

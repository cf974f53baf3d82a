"""A run that is stopped keeps a checkpoint of the round in hand, and its rest if nobody else can go on."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.base.pools import NOTES
from shoal.node.run import run as module
from shoal.node.run.run import NOTE_EVERY, Run
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.tasks import Tasks


async def for_ever() -> None:
    await asyncio.Event().wait()


class Failing(SimpleNamespace):
    """The part of a run that a failure concerns."""

    def __init__(self) -> None:
        super().__init__(manifest=SimpleNamespace(name="ours"), training=None, failure="", may_be_opened_again=False)
        self._parted = asyncio.Event()

    def fail(self, error: Exception) -> None:
        Run._fail(cast(Run, self), error)


class Stopping(SimpleNamespace):
    """The part of a run that `close` uses."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        say = self.commands.append
        driver = SimpleNamespace(command=say, end=list, settled=self.settled, close=lambda: say("closed"))
        log = SimpleNamespace(is_member=True, core=SimpleNamespace(looks=False))
        member = SimpleNamespace(leave="leave", stop="stop", log=log)
        saving = SimpleNamespace(written=self.wait_for_write)
        super().__init__(driver=driver, member=member, saving=saving, training=None, failure="", _busy=asyncio.Lock())
        self.notes: list[str] = []
        self.store = SimpleNamespace(note_running=lambda: self.notes.append("runs"))
        self.written: list[str] = []
        self.full, self.fails = False, ""
        self._tasks = Tasks(self.commands.append)
        self._parted = asyncio.Event()
        self._write: asyncio.Task[None] | None = None

    async def settled(self) -> None:
        """No record is being written; the last one may not have been."""
        if self.fails:
            self.failure = self.fails

    async def apply(self, go_on: asyncio.Event) -> None:
        async with self._busy:
            await go_on.wait()
            self._write = self._tasks.spawn(self.write())

    async def write(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.written.append("checkpoint")

    async def wait_for_write(self) -> None:
        if self._write is not None:
            await asyncio.wait([self._write])

    def _note_running(self) -> None:
        Run._note_running(cast(Run, self))

    async def _keep(self) -> None:
        if self.full:
            raise LocalError("cannot keep the run")
        self.written.append("rest")


@pytest.mark.asyncio
async def test_what_is_being_applied_is_written_before_the_end() -> None:
    run, go_on = Stopping(), asyncio.Event()
    run._tasks.spawn(run.apply(go_on))
    await asyncio.sleep(0)
    closing = asyncio.create_task(Run.close(cast(Run, run)))
    await asyncio.sleep(0)
    assert run.commands == ["stop"]  # we are still there, because others may be leaving
    run._parted.set()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(closing, 10)
    assert run.written == ["checkpoint", "rest"]
    assert run.commands == ["stop", "closed"]
    await asyncio.wait_for(Run.close(cast(Run, run)), 10)  # nothing is left to wait for


@pytest.mark.asyncio
async def test_who_leaves_for_good_is_let_go_first_so_that_the_others_can_decide_and_keeps_nothing() -> None:
    run = Stopping()
    closing = asyncio.create_task(Run.close(cast(Run, run), for_good=True))
    await asyncio.sleep(0)
    assert run.commands == ["stop"]
    run._parted.set()
    await asyncio.wait_for(closing, 10)
    assert run.commands == ["stop", "closed"]
    assert run.written == []


@pytest.mark.asyncio
async def test_who_is_no_member_leaves_at_once() -> None:
    run = Stopping()
    run.member.log.is_member = False
    await asyncio.wait_for(Run.close(cast(Run, run), for_good=True), 10)
    assert run.commands == ["leave", "closed"]


@pytest.mark.asyncio
async def test_a_run_that_has_failed_here_is_not_kept() -> None:
    run = Stopping()
    run.failure = "the disk is full"
    run._parted.set()
    await asyncio.wait_for(Run.close(cast(Run, run)), 10)
    assert run.written == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("failure", "looks", "for_good", "notes"),
    [
        ("", False, False, ["runs"]),
        ("its disk is full", False, False, []),
        ("", True, False, []),
        ("", False, True, []),
    ],
)
async def test_the_end_is_noted_unless_others_may_have_gone_on_without_us_before(
    failure: str, looks: bool, for_good: bool, notes: list[str]
) -> None:
    """Who starts soon again need not look for the others: but who had failed, or was still looking for them, has to."""
    run = Stopping()
    run.failure, run.member.log.core.looks = failure, looks
    run._parted.set()
    await asyncio.wait_for(Run.close(cast(Run, run), for_good), 10)
    assert await asyncio.to_thread(NOTES.join, 10)
    assert run.notes == notes


@pytest.mark.asyncio
async def test_a_node_notes_that_it_runs_however_long_its_rounds_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, as a disk may hang; and every few seconds, not each time that it reports to the others."""
    run, clock = Stopping(), itertools.count(0.0, NOTE_EVERY / 10)
    run.driver.now, run.obstacle = lambda: next(clock), ""
    run.member.phase, run._report_now = "training", None
    monkeypatch.setattr(module, "REPORT_EVERY", 0.0)
    threads: list[str] = []
    run.store.note_running = lambda: threads.append(threading.current_thread().name)
    reporting = asyncio.create_task(Run._report(cast(Run, run)))
    while len(run.commands) < 100:
        await asyncio.sleep(0)
    reporting.cancel()
    assert await asyncio.to_thread(NOTES.join, 10)
    assert set(threads) == {"notes-0"}
    assert 5 <= len(threads) <= 20


@pytest.mark.asyncio
async def test_a_run_that_cannot_be_kept_ends_all_the_same_and_says_so() -> None:
    run = Stopping()
    run.full = True
    reporting = run._tasks.spawn(for_ever())
    run._parted.set()
    with pytest.raises(LocalError, match="cannot keep"):
        await asyncio.wait_for(Run.close(cast(Run, run)), 10)
    assert reporting.cancelled()
    with pytest.raises(LocalError, match="cannot keep"):
        await asyncio.wait_for(Run.keep(cast(Run, run)), 10)
    run.full = False
    await asyncio.wait_for(Run.keep(cast(Run, run)), 10)
    assert run.written == ["rest"]


@pytest.mark.asyncio
async def test_a_record_that_cannot_be_written_at_the_end_is_no_good_end() -> None:
    run = Stopping()
    run.fails = "cannot write the vote: No space left on device"
    run._parted.set()
    with pytest.raises(LocalError, match="cannot write the vote"):
        await asyncio.wait_for(Run.close(cast(Run, run)), 10)
    await asyncio.wait_for(Run.close(cast(Run, run)), 10)  # it is known by now
    await asyncio.wait_for(Run.close(cast(Run, run), for_good=True), 10)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA out of memory"), True),
        (LocalError("the manifest contradicts itself"), False),
        (KeyError("bug"), False),
    ],
)
async def test_a_run_that_failed_for_want_of_memory_or_disk_may_be_opened_again(error: Exception, passes: bool) -> None:
    run = Failing()
    run.fail(error)
    assert run.may_be_opened_again == passes
    assert run.failure


@pytest.mark.asyncio
async def test_what_comes_after_a_failure_is_logged_and_does_not_replace_it(caplog: pytest.LogCaptureFixture) -> None:
    run = Failing()
    run.fail(MemoryError())
    first = run.failure
    run.fail(KeyError("because of it"))
    assert (run.failure, run.may_be_opened_again) == (first, True)
    assert "because of it" in caplog.text

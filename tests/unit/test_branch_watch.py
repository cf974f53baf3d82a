"""What a node says of a run whose members had gone on in parts: to those who left theirs, and to those who stayed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.branch_watch import BranchWatch
from shoal.node.run.phases import PhaseLog
from shoal.node.run.records import CommitLog
from shoal.node.run.run import Run
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import CameBack, LogSkipped, Unanchored
from shoal.protocol.messages.log import Stem
from tests.simulation.log_worlds import PEERS, register_of
from tests.unit.test_outgoing import ME, decision

A, B, C = PEERS[:3]
PARENT = register_of(3, 3)
BRANCH = replace(PARENT, branch=digest("a branch"), earlier=(Stem(PARENT.branch, 15),), members=PARENT.members[1:])


def run(me: PeerId = A) -> Any:
    """The part of a run that listens to its log."""
    made = SimpleNamespace(branches=BranchWatch("tiny"), me=me, passed=[])
    made._on_outcome = made.passed.append
    made._is_taken_along = lambda before, register: Run._is_taken_along(cast(Run, made), before, register)
    return made


def tell(made: Any, event: Any) -> str:
    """What is said of the last event then."""
    Run._on_event(cast(Run, made), event)
    return str(made.branches.words)


@pytest.mark.parametrize("event", [EntryDecided(cast(Any, None), PARENT, BRANCH), LogSkipped(PARENT, BRANCH)])
def test_that_the_log_goes_on_as_a_branch_is_said_however_it_was_learned(
    event: EntryDecided | LogSkipped, caplog: pytest.LogCaptureFixture
) -> None:
    before, made = time.time(), run(B)
    assert tell(made, event) == "it goes on with 2 members (B, C)"
    assert before <= made.branches.at <= time.time()
    assert [record.message for record in caplog.records] == ["tiny: it goes on with 2 members (B, C)"]


def test_whoever_comes_later_is_told_nothing_of_it() -> None:
    assert tell(run(PeerId("new")), LogSkipped(PARENT, BRANCH)) == ""


def test_those_who_stayed_are_told_who_is_back() -> None:
    said = tell(run(), CameBack((B, C)))
    assert (
        said == "B, C are members again, without whom it had gone on; what they have decided meanwhile counts no more"
    )


@pytest.mark.asyncio
async def test_those_who_left_their_part_are_told_what_counts_no_more_and_where_it_lies() -> None:
    """Also of the round that was being applied when they left."""
    commits, busy, forgotten = CommitLog(), asyncio.Lock(), list[int]()
    made = SimpleNamespace(branches=BranchWatch("tiny"), commits=commits, _busy=busy)
    made.driver = SimpleNamespace(timelines=SimpleNamespace(forget=forgotten.append))

    async def set_aside(branch: str) -> Path:
        assert branch == PARENT.branch.hex()[:8]
        return Path("/runs/aside")

    made.saving = SimpleNamespace(set_aside=set_aside)

    def add(round: int, entry: int) -> None:
        commits.add(replace(decision(round), number=entry), NO_DIGEST, ME, 1.0, 0, PhaseLog(), samples=0)

    for round in (1, 2, 3):
        add(round, 12 + round)
    await busy.acquire()
    leaving = asyncio.create_task(AgreedRun._leave_branch(cast(AgreedRun, made), PARENT, BRANCH))
    await asyncio.sleep(0)
    assert made.branches.words.endswith("this node joins that of 2 members (B, C), which has more to show")
    add(4, 16)
    busy.release()
    await leaving
    assert made.branches.words.endswith(
        "; 20 tokens of 2 rounds count no more; the checkpoints of that part are in /runs/aside"
    )
    assert [record.round for record in commits.records] == [1, 2]
    assert forgotten == [3]


@pytest.mark.asyncio
async def test_a_link_of_a_branch_that_was_left_is_no_condition_after_a_restart_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, spawned = run(), list[Any]()
    made._tasks = SimpleNamespace(spawn=spawned.append)
    made._forget_anchor = lambda: "forget"
    assert tell(made, Unanchored()) == ""
    assert spawned == ["forget"]
    assert "has left the branch of its log on which the link was made" in caplog.records[0].message

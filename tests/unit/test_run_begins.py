"""Whether a worker goes on from its own weights or begins anew, after a commit and after a downloaded state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.manifest.manifest import Manifest
from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.meters import Meters
from shoal.node.run.run import Run
from shoal.protocol.averaging.events import Committed, Lapsed
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.catchup.transfer import StateReceived

ME, ROOT = PeerId("me"), digest("a state")

RESULTS = object()  # when those that were decided are written


class Records:
    """A training that records its orders."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def begin(self, base: int, lane: int, samples: int) -> None:
        self.told.append(("begin", base))

    def committed(self, base: int, lane: int, samples: int) -> None:
        self.told.append(("committed", base))

    def note(self, round: int, outcome: object) -> None:
        self.told.append(("note", round))


class Applying(SimpleNamespace):
    """The part of a run that applies, installs and begins rounds; a round's commit opens the next one."""

    def __init__(self, folder: Path) -> None:
        record = SimpleNamespace(round=0, round_samples=1, seconds=1.0, took_part=True, digest="digest")
        snapshot = SimpleNamespace(root=ROOT)
        super().__init__(
            manifest=Manifest(name="a"),
            outer=SimpleNamespace(
                apply=lambda _: snapshot,
                outcome=lambda _: None,
                committed=SimpleNamespace(skip=self._skip, adopt=lambda _: None),
            ),
            member=SimpleNamespace(
                base_round=None,
                certified=SimpleNamespace(tokens=lambda _: 0),
                rounds=SimpleNamespace(base_with=lambda decision, root: Base(decision.round, 0, NO_DIGEST, root)),
                applied=None,
            ),
            driver=SimpleNamespace(command=lambda _: None, now=lambda: 0.0, phases=None),
            commits=SimpleNamespace(add=lambda *_: record),
            meters=Meters(),
            outgoing=SimpleNamespace(resent=0),
            received=[],
            saving=SimpleNamespace(checkpoint=self._checkpoint, received=self._received),
            training=Records(),
            samples=0,
            obstacle="",
            is_finished=False,
            me=ME,
            _lane=0,
            _open_round=0,
            _busy=asyncio.Lock(),
            _settings=SimpleNamespace(folder=folder),
            _shortening=lambda round: None,
            _members=(),
        )

    def _begin_round(self, goes_on: bool = False) -> None:
        Run._begin_round(cast(Run, self), goes_on)

    def _skip(self, round: int) -> SimpleNamespace:
        self.stands_on(round)
        return SimpleNamespace(root=ROOT)

    async def _checkpoint(self, *about: object) -> None:
        """None is due; it would come after the means of the result."""
        assert RESULTS in about

    async def _received(self, base: Any, *_: object) -> None:
        self.received.append(base.round)

    def stands_on(self, round: int | None) -> None:
        """The round that the member's next one builds on; None while it applies a commit."""
        self.member.base_round = round

    async def commit(self, round: int) -> None:
        decision = SimpleNamespace(round=round, roster=(ME,), tokens=1, payloads=())
        self.stands_on(round)
        await AgreedRun._apply(
            cast(AgreedRun, self), cast(Committed, cast(Any, SimpleNamespace(decision=decision))), cast(Any, RESULTS)
        )

    async def lapse(self, round: int) -> None:
        await AgreedRun._lapse(cast(AgreedRun, self), Lapsed(round))

    async def install(self, round: int) -> None:
        event: Any = SimpleNamespace(base=SimpleNamespace(round=round, root=ROOT))
        draft: Any = SimpleNamespace(snapshot=lambda: None)
        await AgreedRun._install(cast(AgreedRun, self), cast(StateReceived, event), draft)


@pytest.mark.asyncio
async def test_commit_after_commit_is_gone_on_from(tmp_path: Path) -> None:
    run = Applying(tmp_path)
    run.stands_on(4)
    run._begin_round()
    await run.commit(5)
    assert run.training.told == [("begin", 4), ("note", 5), ("committed", 5)]


@pytest.mark.asyncio
async def test_a_round_that_was_decided_before_a_state_came_does_not_hide_where_that_is_from(tmp_path: Path) -> None:
    """The state of round 8 comes; before we stand on it the member has decided 9: weights of round 5 are of no use."""
    run = Applying(tmp_path)
    run.stands_on(4)
    run._begin_round()
    await run.commit(5)
    del run.training.told[:]
    run.stands_on(None)
    await run.install(8)
    assert (run.training.told, run.received) == ([], [8])
    await run.commit(9)
    assert run.training.told == [("note", 9), ("begin", 9)]
    await run.commit(10)
    assert run.training.told[2:] == [("note", 10), ("committed", 10)]


@pytest.mark.asyncio
async def test_another_state_of_the_round_that_we_are_in_begins_training_anew(tmp_path: Path) -> None:
    run = Applying(tmp_path)
    run.stands_on(8)
    run._begin_round()
    await run.install(8)
    assert run.training.told == [("begin", 8), ("begin", 8)]


@pytest.mark.asyncio
async def test_a_round_that_is_undone_begins_training_anew_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Applying(tmp_path)
    run.stands_on(4)
    run._begin_round()
    await run.lapse(5)
    assert run.training.told == [("begin", 4), ("begin", 5)], "nothing that was trained for it counts"
    assert run.meters.as_json()["failures"] == {"voided": 1}
    assert [each.code for each in caplog.records] == ["round-undone"]  # type: ignore[attr-defined]

"""What a run writes of its state: snapshots beside a long log, and what a stop keeps if the others need our vote."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.base.home import KEPT
from shoal.node.base.kept import KeptVote
from shoal.node.manifest.manifest import Manifest, OriginSpec
from shoal.node.run import means_store
from shoal.node.run import saving as module
from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.facts import run_facts
from shoal.node.run.log_store import FOLDER, LEFT, STATE, LogStore
from shoal.node.run.saving import Saving
from shoal.node.run.settings import RunSettings
from shoal.node.supervisor.training import Training
from shoal.node.training.checkpoint import keep
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import CHECKPOINTS, newest_first
from shoal.node.training.state.committed import CommittedState
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, result_hash
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.log.register import Rules
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.averaging import Made, Mean
from tests.run_kit import id_of
from tests.simulation.signing import FakeSigner
from tests.unit.checkpoint_kit import HISTORY, MANIFEST, ME, OTHER, moments, state
from tests.unit.rounds_kit import ROUND

HELD = state(ROUND)
MEMBERS, SAMPLES = (OTHER, ME), 1000
THIRD = PeerId("third")
RULES = Rules(Crash(), FakeSigner(ME))


@pytest.fixture(autouse=True)
def slot_for_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is forgotten is gone at once, and none is spared."""
    monkeypatch.setattr(means_store, "FULL", 1)
    monkeypatch.setattr(Saving, "spared", property(lambda _: 0))


class Trained(SimpleNamespace):
    """A training that has moments."""

    async def moments(self) -> Any:
        return moments(HELD)


def base_of(held: CommittedState) -> Base:
    return Base(held.current.round, 17, HISTORY, held.current.root)


def mean(round: int) -> Mean:
    payload = bytes([round]) * 1000
    return Mean(0, round, 0, Made(result_hash(b"\x01", payload), b"\x01", 0, ME, 1, b"said"), payload)


def written(is_so: bool = True) -> asyncio.Future[bool]:
    """The means of all results are, or never will be."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(is_so)
    return future


class Bench:
    """A run's files, with means of the rounds around that of the state."""

    def __init__(self, home: Path, manifest: Manifest = MANIFEST, held: CommittedState = HELD, every: int = 0) -> None:
        self.folder = home / id_of(manifest).hex()
        self.folder.mkdir(parents=True)
        self.held = held
        self.settings = RunSettings(self.folder, 1, (), True, Keeping(every), None)
        self.store = LogStore(self.folder)
        self._founding = run_facts(manifest, id_of(manifest), ME, seeded=NO_DIGEST, chunks=(1,)).register()
        self.store.open(self._founding, RULES, True)
        for round in range(held.current.round - 1, held.current.round + 2):
            self.store.put("means", mean(round))
        self.tasks: list[asyncio.Task[None]] = []
        self.saving = Saving(manifest, id_of(manifest), ME, held, self.settings, self._spawn, self.store)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def end(
        self, *, keeps_vote: bool = True, samples: int = SAMPLES, trained: bool = True, is_ours: bool = True
    ) -> None:
        """The end of a run, as far as its files are concerned; `is_ours`: the log knows the state that is held."""
        state = self.held.current
        history = HISTORY if is_ours else None
        certified = SimpleNamespace(
            history=lambda round: history,
            certified_root=lambda round: None,
            base=lambda round, root: base_of(self.held),
        )
        log = SimpleNamespace(register=SimpleNamespace(voters=(ME, OTHER, THIRD)))
        member = SimpleNamespace(
            keeps_vote=keeps_vote, held_round=1, certified=certified, log=log, awaited_voters=[OTHER]
        )
        training = Trained() if trained else None
        manifest = self.saving._manifest
        run = SimpleNamespace(
            manifest=manifest, store=self.store, member=member, saving=self.saving, training=training, samples=samples
        )
        run.outer = SimpleNamespace(committed=SimpleNamespace(current=state))
        run._members, run._to_keep = MEMBERS, AgreedRun._to_keep.fget(run)  # type: ignore[attr-defined]
        await AgreedRun._keep(cast(AgreedRun, run))

    async def checkpoint(self) -> None:
        """A round was applied, and what is written of it is."""
        await self.saving.checkpoint(base_of(self.held), MEMBERS, SAMPLES, cast(Training, Trained()), written())
        await self.saving.written()

    def states(self) -> list[Checkpoint]:
        """What is found beside the log, the newest first."""
        return [load(each.path) for each in newest_first(self.folder / FOLDER / STATE)]

    def kept_means(self) -> list[int]:
        """Of which rounds means are found."""
        store = LogStore(self.folder)
        store.open(self._founding, RULES, True)  # type: ignore[attr-defined]
        return [each.round for round in range(20) for each in store.means.read(round)]

    def rounds_aside(self) -> list[int]:
        """The rounds of the checkpoints that were set aside."""
        folders = self.folder.glob(f"set-aside-*/{CHECKPOINTS}")
        return [each.about.round for folder in folders for each in newest_first(folder) if each.about is not None]

    @property
    def is_marked(self) -> bool:
        """Whether the node says that it has kept the vote."""
        return (self.folder / FOLDER / KEPT).exists()


@pytest.mark.asyncio
@pytest.mark.parametrize("trained", [True, False])
async def test_what_nobody_else_may_have_is_kept_with_its_tokens_and_moments(tmp_path: Path, trained: bool) -> None:
    bench = Bench(tmp_path)
    await bench.end(trained=trained)
    assert bench.is_marked
    assert KeptVote.read(bench.folder / FOLDER / KEPT) == KeptVote(3, (OTHER,))
    [found] = bench.states()
    assert found.committed().current.root == HELD.current.root
    about = found.about
    assert (about.run, about.round, about.history) == (id_of(MANIFEST).hex(), ROUND, HISTORY.hex())
    assert (about.samples, about.members) == (SAMPLES, MEMBERS)
    assert (found.moments is not None) == trained
    assert bench.kept_means() == [ROUND, ROUND + 1], "who is behind may still want those of the round"


@pytest.mark.asyncio
async def test_the_state_that_a_run_goes_on_from_is_kept_too(tmp_path: Path) -> None:
    held = state(ROUND - 1)
    root, history = held.current.root.hex(), HISTORY.hex()
    origin = OriginSpec(run="ab" * 32, round=ROUND - 1, history=history, root=root, samples=77)
    bench = Bench(tmp_path, MANIFEST.model_copy(update={"origin": origin}), held)
    await bench.end(samples=77)
    [found] = bench.states()
    assert found.committed().current.root == held.current.root
    assert (found.about.round, found.about.samples, found.about.history) == (ROUND - 1, 77, history)


@pytest.mark.asyncio
async def test_while_others_can_go_on_there_is_the_log_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.end(keeps_vote=False)
    assert not bench.is_marked
    assert bench.states() == []
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]


@pytest.mark.asyncio
async def test_a_state_that_the_log_does_not_know_is_not_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.end(is_ours=False)
    assert not bench.is_marked
    assert bench.states() == []


@pytest.mark.asyncio
async def test_what_was_kept_stays_as_long_as_there_is_nothing_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.end()
    await bench.end(keeps_vote=False)
    assert [each.about.round for each in bench.states()] == [ROUND]


@pytest.mark.asyncio
@pytest.mark.parametrize(("last", "trains_on"), [(ROUND, False), (ROUND + 1, True)])
async def test_a_finished_run_is_found_finished_and_without_moments(tmp_path: Path, last: int, trains_on: bool) -> None:
    bench = Bench(tmp_path, MANIFEST.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"last": last})}))
    await bench.end()
    [found] = bench.states()
    assert found.about.round == ROUND
    assert (found.moments is not None) == trains_on


@pytest.mark.asyncio
async def test_what_cannot_be_kept_is_an_error_and_not_said_to_be_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.folder / FOLDER / STATE).write_text("no folder")
    with pytest.raises(LocalError):
        await bench.end()
    assert not bench.is_marked
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]


@pytest.mark.asyncio
async def test_nothing_is_kept_in_a_home_that_was_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.folder.rename(tmp_path / "elsewhere")
    await bench.end()
    assert not bench.folder.exists()


# -- while it goes on -----------------------------------------------------------------------------------------------


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few means make a log long."""
    monkeypatch.setattr(module, "LONG_LOG", 3000)
    monkeypatch.setattr(module, "STATES", 0)


@pytest.mark.asyncio
async def test_a_short_log_has_no_snapshot_and_a_checkpoint_is_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.checkpoint()
    assert bench.states() == []
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]
    bench = Bench(tmp_path / "other", every=ROUND)
    await bench.checkpoint()
    assert bench.states() == []
    assert bench.saving.keeper.newest == ROUND
    assert bench.kept_means() == [ROUND, ROUND + 1]


@pytest.mark.asyncio
async def test_a_state_is_written_after_the_means_that_led_to_it(tmp_path: Path) -> None:
    """Else all could be killed with it on one disk, and with means that others lack on none."""
    bench, results = Bench(tmp_path, every=ROUND), asyncio.get_running_loop().create_future()
    await bench.saving.checkpoint(base_of(bench.held), MEMBERS, SAMPLES, None, results)
    done, _ = await asyncio.wait(bench.tasks, timeout=0.1)
    assert (list(done), bench.saving.keeper.newest) == ([], 0)
    results.set_result(True)
    await bench.saving.written()
    assert bench.saving.keeper.newest == ROUND


@pytest.mark.asyncio
@pytest.mark.parametrize("every", [ROUND, 0], ids=["checkpoint", "snapshot"])
async def test_a_state_whose_means_were_dropped_is_not_written_and_nothing_is_forgotten(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the run has left the branch that it is of, or the disk is broken."""
    monkeypatch.setattr(module, "LONG_LOG", 1000)
    monkeypatch.setattr(module, "STATES", 0)
    bench, is_saved = Bench(tmp_path, every=every), list[bool]()
    await bench.saving.checkpoint(
        base_of(bench.held), MEMBERS, SAMPLES, None, written(False), lambda: is_saved.append(True)
    )
    assert len(bench.tasks) == 1
    await bench.saving.written()
    assert (bench.saving.newest, is_saved, bench.states()) == (0, [], [])
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]
    assert not bench.held._leases


@pytest.mark.asyncio
@pytest.mark.parametrize("is_after_a_snapshot", [False, True])
async def test_while_results_are_waited_for_the_next_checkpoints_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after_a_snapshot: bool
) -> None:
    """Each would hold a state in memory."""
    bench, results = Bench(tmp_path, every=ROUND), asyncio.get_running_loop().create_future()
    if is_after_a_snapshot:
        monkeypatch.setattr(bench.saving, "_snapshot", lambda *_: asyncio.sleep(3600))
        await bench.saving.received(base_of(bench.held), MEMBERS, SAMPLES)
    about = base_of(bench.held), MEMBERS, SAMPLES, None, results
    for _ in range(3):
        await bench.saving.checkpoint(*about)
        await asyncio.sleep(0)
    assert len(bench.tasks) == 1 + is_after_a_snapshot
    if is_after_a_snapshot:
        bench.tasks[0].cancel()
    results.set_result(True)
    await bench.saving.written()
    assert bench.saving.keeper.newest == ROUND


@pytest.mark.asyncio
@pytest.mark.usefixtures("_long")
async def test_results_of_before_a_snapshot_stay_for_others_and_make_no_log_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Saving, "spared", property(lambda _: 10_000))
    bench = Bench(tmp_path)
    await bench.checkpoint()
    assert [each.about.round for each in bench.states()] == [ROUND]
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]
    assert not bench.saving._is_long(ROUND)


@pytest.mark.asyncio
@pytest.mark.usefixtures("_long")
async def test_a_log_that_gets_long_is_made_short_by_a_snapshot_of_which_the_newest_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.checkpoint()
    assert [(each.about.round, each.moments is not None) for each in bench.states()] == [(ROUND, True)]
    assert bench.kept_means() == [ROUND, ROUND + 1]
    assert bench.saving.keeper.newest == 0, "it is no checkpoint of the person's"
    later = Bench(tmp_path / "later", held=state(ROUND + 1))
    for each in (bench.folder / FOLDER / STATE).iterdir():
        (later.folder / FOLDER / STATE).mkdir()
        each.rename(later.folder / FOLDER / STATE / each.name)
    await later.checkpoint()
    assert [each.about.round for each in later.states()] == [ROUND + 1]
    await bench.checkpoint()
    assert len(bench.tasks) == 1, "it is short now"


@pytest.mark.asyncio
async def test_what_is_written_is_waited_for_whatever_was_begun_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is due while a snapshot is being written waits for it, and a stop for both."""
    bench, may_end, done = Bench(tmp_path, every=ROUND), asyncio.Event(), list[str]()

    async def slow(*_: object) -> None:
        await may_end.wait()
        done.append("snapshot")

    async def quick(*_: object) -> None:
        done.append("checkpoint")

    monkeypatch.setattr(bench.saving, "_snapshot", slow)
    monkeypatch.setattr(bench.saving.keeper, "write", quick)
    about = base_of(bench.held), MEMBERS, SAMPLES, None, written()
    with monkeypatch.context() as patched:
        patched.setattr(bench.saving.keeper, "is_due", lambda *_: False)
        patched.setattr(bench.saving, "_is_long", lambda _: True)
        await bench.saving.checkpoint(*about)
    await bench.saving.checkpoint(*about)
    stop = asyncio.create_task(bench.saving.written())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (done, stop.done()) == ([], False)
    may_end.set()
    await stop
    assert done == ["snapshot", "checkpoint"]


@pytest.mark.asyncio
@pytest.mark.usefixtures("_long")
async def test_a_snapshot_that_cannot_be_written_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)

    def full(*_: object) -> None:
        raise LocalError("cannot write the checkpoint: No space left on device")

    monkeypatch.setattr(module, "write_checkpoint", full)
    await bench.checkpoint()
    assert [each.exception() for each in bench.tasks] == [None], "what fails in a task of a run ends the run"
    assert bench.kept_means() == [ROUND - 1, ROUND, ROUND + 1]


@pytest.mark.asyncio
async def test_a_state_that_others_have_sent_is_on_our_disk_and_a_stop_waits_for_it(tmp_path: Path) -> None:
    """No rounds that we have lead to it, and those who have sent it may be gone for good when we are back."""
    bench = Bench(tmp_path)
    await bench.saving.received(base_of(HELD), MEMBERS, SAMPLES)
    await bench.saving.written()
    await bench.end(keeps_vote=False)
    [found] = bench.states()
    assert (found.about.round, found.about.samples) == (ROUND, SAMPLES)
    assert found.committed().current.root == HELD.current.root
    assert bench.kept_means() == [ROUND, ROUND + 1]
    assert not bench.is_marked


# -- after a branch was left ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_is_saved_of_a_left_branch_is_set_aside_and_nothing_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may hang, and the event loop must not wait for it."""
    bench = Bench(tmp_path, every=ROUND)
    await bench.checkpoint()
    (bench.folder / FOLDER / LEFT).touch()

    def reads(*_: object) -> None:
        raise AssertionError("read in the event loop")

    monkeypatch.setattr(keep, "newest_first", reads)
    await bench.saving.set_aside("left")
    assert bench.saving.newest == 0
    assert bench.saving.keeper.newest_at is None
    assert bench.rounds_aside() == [ROUND]
    assert not (bench.folder / FOLDER / LEFT).exists()


@pytest.mark.asyncio
async def test_as_long_as_the_states_of_a_left_branch_cannot_be_set_aside_nothing_is_saved_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody could tell later which of them are of the branch that the run is on."""
    bench = Bench(tmp_path, every=ROUND)
    await bench.checkpoint()
    (bench.folder / FOLDER / LEFT).touch()
    caplog.set_level(logging.WARNING, "shoal.run")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        await bench.saving.set_aside("left")
        assert bench.saving.newest == 0, "the journal is not made shorter than what can be gone on from"
        await bench.checkpoint()
        with pytest.raises(LocalError, match="of a branch that was left: No space left") as caught:
            await bench.end()
    assert is_temporary(caught.value), "so a stop tries again"
    assert {each.code for each in caplog.records} == {"checkpoint-failed"}  # type: ignore[attr-defined]
    assert (bench.folder / FOLDER / LEFT).exists(), "the next process goes on with it"
    assert bench.states() == []
    await bench.checkpoint()
    assert bench.rounds_aside() == [ROUND]
    assert bench.saving.newest == ROUND
    await bench.end()
    assert len(bench.states()) == 1


@pytest.mark.asyncio
async def test_the_same_branch_may_be_left_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=ROUND)
    for _ in range(2):
        await bench.checkpoint()
        await bench.saving.set_aside("left")
    assert bench.rounds_aside() == [ROUND, ROUND]

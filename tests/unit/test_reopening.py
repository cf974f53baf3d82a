"""A run that is opened again from what is on the disk: its log, the means of the last rounds, and a state."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from shoal.node.base.kept import KeptVote
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.run import agreed_run, means_store
from shoal.node.run import run as run_module
from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.log_store import FOLDER, JOURNAL, MEANS, STATE
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.training.checkpoint.lineage import with_origin
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import CHECKPOINTS, find, newest_first
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.outer import OuterState
from shoal.protocol.averaging.certified import KEPT
from shoal.protocol.averaging.events import Committed
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.base.effects import Effect, Persist, Tell, Timer, Wake
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.shortages import is_temporary
from shoal.protocol.log.register import voters_root
from shoal.protocol.log.shortcuts import START
from shoal.protocol.member.facts import FOUNDING_LIFE
from shoal.protocol.messages.averaging import Table
from shoal.protocol.messages.log import Register, Shortcut, Switch, VoteFile
from shoal.protocol.net.peers.network import Network
from tests.run_kit import id_of, unsigned
from tests.simulation.signing import FakeSigner
from tests.unit import checkpoint_kit
from tests.unit.checkpoint_kit import ME, moments, state, write

TINY = checkpoint_kit.MANIFEST
MANIFEST = TINY.model_copy(update={"rounds": TINY.rounds.model_copy(update={"min_members": 1, "start_members": 1})})
TOKENS = 100  # of each round
MOST = 10_000  # steps in which a member that is alone must be done


def opened(
    home: Path, manifest: Manifest = MANIFEST, origin: Checkpoint | None = None, *, is_founding: bool = False
) -> AgreedRun:
    """The run as a process of the founder finds it."""
    folder = home / id_of(manifest, ME).hex()
    folder.mkdir(exist_ok=True)
    network = cast(Network, SimpleNamespace(addresses=tuple))
    settings = RunSettings(folder, 1, (), False, Keeping(), None)
    found = Introduction(manifest, unsigned(manifest, ME), {})
    return AgreedRun(found, FakeSigner(ME), network, settings, origin, is_founding=is_founding)


class Alone:
    """A run whose one member decides rounds by itself, on a clock of its own, until it is killed."""

    def __init__(self, run: AgreedRun) -> None:
        self.run, self.now = run, 0.0
        self.bases: list[Base] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        run.member = run._make_member()
        self._do(run.member.start(0.0, []))

    def goes_on(self, rounds: int) -> Base:
        """So many rounds are decided and applied; what the next one builds on."""
        for _ in range(rounds):
            outer, base = self.run.outer, self.run.member.rounds.base
            assert base is not None
            vector = np.random.default_rng(base.round).standard_normal(outer.elements, dtype=np.float32)
            self._do(self.run.member.submit(self.now, Ready(TOKENS), outer.encoder(vector, base.round + 1)))
            self._until(base.round + 1)
        return self.base

    @property
    def base(self) -> Base:
        """What the next round builds on."""
        base = self.run.member.rounds.base
        assert base is not None
        return base

    def does(self, step: Callable[[float], list[Effect]]) -> None:
        """Carries out a command, as a driver."""
        self._do(step(self.now))

    def _until(self, round: int) -> None:
        for _ in range(MOST):
            base = self.run.member.rounds.base
            if base is not None and base.round == round:
                return
            self.now, _, timer = heapq.heappop(self._timers)
            self._do(self.run.member.fire(self.now, timer))
        raise AssertionError(f"round {round} is not decided: {self.run.member.rounds}")

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(name, record):
                    self.run.store.put(name, record)
                    if name == "result" and isinstance(record, Table):
                        self._do(self.run.member.kept(self.now, record.round))
                case Wake(after, timer):
                    heapq.heappush(self._timers, (self.now + after, next(self._count), timer))
                case Tell(Committed(decision)):
                    snapshot = self.run.outer.apply(decision.payloads)
                    self._do(self.run.member.applied(self.now, snapshot.root))


def played(home: Path, rounds: int) -> Base:
    """A run that was founded, and killed after some rounds; on what the next one would have been built."""
    return Alone(opened(home, is_founding=True)).goes_on(rounds)


def stood(run: AgreedRun) -> tuple[int, Digest, int]:
    """Where it stands without having heard of anybody."""
    assert run._base is not None
    assert run._base.root == run.outer.root
    assert run._base.round == run.outer.committed.current.round
    return run._base.round, run._base.history, run.samples


def about_of(base: Base, members: tuple[PeerId, ...], manifest: Manifest = MANIFEST, **more: int) -> About:
    given: Any = {"samples": 5, "inner_steps": 0} | more
    return About.of(manifest, id_of(manifest, ME), base, members, peer=ME, **given)


def kept(home: Path, run: AgreedRun, base: Base, samples: int, folder: str = f"{FOLDER}/{STATE}") -> Path:
    """The run's state is written, as at a stop."""
    held = run.outer.committed
    about = about_of(base, (ME,), samples=samples, inner_steps=7)
    return write_checkpoint(home / id_of(MANIFEST, ME).hex() / folder, about, held.current, moments(held))


def log_of(home: Path) -> Path:
    return home / id_of(MANIFEST, ME).hex() / FOLDER


def test_who_was_killed_stands_where_it_stood_and_goes_on_in_the_same_life(tmp_path: Path) -> None:
    base = played(tmp_path, 3)
    again = opened(tmp_path)
    assert stood(again) == (3, base.history, 3 * TOKENS)
    assert again._base == base
    going = Alone(again)
    assert going.base == base
    assert again.member.log.core.life == FOUNDING_LIFE
    assert going.goes_on(2).round == 5
    assert stood(opened(tmp_path)) == (5, going.base.history, 5 * TOKENS)


def test_an_interrupted_run_has_the_same_bits_as_one_that_was_not(tmp_path: Path) -> None:
    (whole := tmp_path / "whole").mkdir()
    (broken := tmp_path / "broken").mkdir()
    through = played(whole, 4)
    played(broken, 1)
    for _ in range(3):
        last = Alone(opened(broken)).goes_on(1)
    assert last == through


def test_it_goes_on_from_the_state_that_was_kept(tmp_path: Path) -> None:
    before = Alone(opened(tmp_path, is_founding=True))
    base = before.goes_on(3)
    kept(tmp_path, before.run, base, samples=4321)
    before.run.store.forget_means(base.round)
    before.run.store.mark_kept(KeptVote())
    run = opened(tmp_path)
    assert stood(run) == (3, base.history, 4321)
    assert run._moments is not None
    assert run._members == (ME,)
    assert Alone(run).goes_on(1).round == 4
    again = opened(tmp_path)
    assert stood(again)[0] == 4, "the round since is replayed"
    assert again.samples == 4321 + TOKENS


@pytest.mark.parametrize("folder", [f"{FOLDER}/{STATE}", CHECKPOINTS])
def test_the_newest_state_counts_and_an_older_one_in_place_of_a_damaged_one(
    tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = Alone(opened(tmp_path, is_founding=True))
    kept(tmp_path, before.run, before.goes_on(1), samples=11, folder=CHECKPOINTS)
    newest = kept(tmp_path, before.run, before.goes_on(1), samples=22, folder=folder)
    assert opened(tmp_path).samples == 22
    assert stood(opened(tmp_path))[0] == 2
    for each in newest.glob("*.safetensors"):
        each.write_bytes(bytes(each.stat().st_size))
    caplog.set_level(logging.WARNING, "shoal.run")
    run = opened(tmp_path)
    assert stood(run)[0] == 2, "round 2 is replayed on the state of round 1"
    assert run.samples == 11 + TOKENS
    assert "rest-damaged" in {each.code for each in caplog.records}  # type: ignore[attr-defined]


def test_a_state_that_the_log_does_not_certify_is_not_gone_on_from(tmp_path: Path) -> None:
    base = played(tmp_path, 3)
    other = state(2)
    about = About.of(
        MANIFEST,
        id_of(MANIFEST, ME),
        Base(2, 2, base.history, other.current.root),
        (ME,),
        samples=5,
        peer=ME,
        inner_steps=0,
    )
    write_checkpoint(log_of(tmp_path) / STATE, about, other.current, None)
    run = opened(tmp_path)
    assert stood(run) == (3, base.history, 3 * TOKENS), "but from the first one, as all means are here"
    assert run._moments is None


def test_a_state_that_is_ahead_of_the_log_is_not_gone_on_from(tmp_path: Path) -> None:
    base = played(tmp_path, 2)
    write_checkpoint(
        log_of(tmp_path) / STATE,
        About.of(
            MANIFEST,
            id_of(MANIFEST, ME),
            Base(9, 30, base.history, state(9).current.root),
            (),
            samples=5,
            peer=ME,
            inner_steps=0,
        ),
        state(9).current,
        None,
    )
    assert stood(opened(tmp_path))[0] == 2


def test_states_of_a_branch_that_was_left_are_set_aside_although_the_process_was_killed_before(tmp_path: Path) -> None:
    """The other branch may have fewer rounds: its states would be older than those of the branch that was left."""
    before = Alone(opened(tmp_path, is_founding=True))
    first = before.goes_on(1)
    kept(tmp_path, before.run, first, samples=1, folder=CHECKPOINTS)
    base = before.goes_on(2)
    for folder in (CHECKPOINTS, f"{FOLDER}/{STATE}"):
        kept(tmp_path, before.run, base, samples=3, folder=folder)
    register = before.run.member.log.register
    part = replace(register.parts[0], round=1, history=digest("another history"))
    other = replace(register, branch=digest("another branch"), parts=(part,))
    before.run.store.put("switch", switch_to(other))
    run = opened(tmp_path)
    assert run._base is None
    assert run.saving.newest == 0
    assert states_of(tmp_path) == {"checkpoints": [], "state": []}
    aside = sorted(each.about.round for each in find(tmp_path) if each.about and "set-aside" in str(each.path))
    assert aside == [1, 3]
    assert len(list(log_of(tmp_path).parent.glob("set-aside-*/state/*"))) == 1
    ours = kept(tmp_path, run, base, samples=4, folder=CHECKPOINTS)
    opened(tmp_path)
    assert ours.exists(), "what is saved since is of the branch that we are on"


def switch_to(register: Register) -> Switch:
    """What is written where a node goes over to another branch."""
    shortcut = Shortcut(register.branch, 1_000_000, True, START, register)
    return Switch(shortcut, VoteFile(2, voters_root(register), 0, 0, None, None))


def states_of(home: Path) -> dict[str, list[int]]:
    """The rounds of the states that count as the run's."""
    folders = (log_of(home).parent / CHECKPOINTS, log_of(home) / STATE)
    return {
        folder.name: [each.about.round for each in newest_first(folder) if each.about is not None] for folder in folders
    }


def test_states_that_cannot_be_set_aside_do_not_count_as_those_of_another_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Alone(opened(tmp_path, is_founding=True))
    kept(tmp_path, before.run, before.goes_on(2), samples=2)
    register = replace(before.run.member.log.register, branch=digest("another branch"))
    before.run.store.put("switch", switch_to(register))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(LocalError, match="No space left") as caught:
            opened(tmp_path)
    assert is_temporary(caught.value), "so it is tried again"
    opened(tmp_path)
    assert states_of(tmp_path)["state"] == []


def test_a_log_that_was_made_shorter_is_enough_to_stand_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members may lose power at once, and what is on their disks is all there is of the run."""
    going = Alone(opened(tmp_path, is_founding=True))
    monkeypatch.setattr(run_module, "LONGEST", 0)
    base = going.goes_on(100)
    size = going.run.store.size
    going.run.driver = cast(Any, SimpleNamespace(command=going.does))
    is_saved = going.run._shortening(60)
    assert stood(opened(tmp_path)) == (100, base.history, 100 * TOKENS)
    going.goes_on(40)
    kept(tmp_path, going.run, going.base, samples=140 * TOKENS)
    is_saved()
    assert stood(opened(tmp_path)) == (140, going.base.history, 140 * TOKENS)
    assert going.run.store.size < size
    Alone(again := opened(tmp_path)).goes_on(1)
    assert again.store.first() is not None


def test_a_state_of_long_before_the_end_of_the_log_is_gone_on_from(tmp_path: Path) -> None:
    """Checkpoints may be far apart, or fail for want of room, and the means of all rounds since are here."""
    before = Alone(opened(tmp_path, is_founding=True))
    base = before.goes_on(2)
    kept(tmp_path, before.run, base, samples=2 * TOKENS)
    before.run.store.forget_means(base.round)
    last = before.goes_on(KEPT + 20)
    assert stood(opened(tmp_path)) == (last.round, last.history, last.round * TOKENS)
    assert Alone(opened(tmp_path)).goes_on(1).round == last.round + 1


def test_results_on_its_disk_are_served_after_a_restart(tmp_path: Path) -> None:
    """Also those of before the state that it goes on from: to others they are less than a state."""
    before = Alone(opened(tmp_path, is_founding=True))
    kept(tmp_path, before.run, before.goes_on(3), samples=3 * TOKENS)
    before.run.saving.forget_means(3)
    before.goes_on(2)
    run = opened(tmp_path)
    assert run.store.means.size == before.run.store.means.size
    shelf = Alone(run).run.member.rounds.shelf
    for round in range(1, 6):
        decision = shelf.served(round)
        assert decision is not None
        found = shelf.find(0, round, 0, decision.means[0].hash)
        assert found is not None
        assert found.payload or run.store.means.payload(round, found.made.hash)


def test_a_result_whose_means_are_not_here_is_waited_for(tmp_path: Path) -> None:
    played(tmp_path, 3)
    (path,) = (log_of(tmp_path) / MEANS).iterdir()
    os.truncate(path, means_store._found(path).of(3)[0].begin + 1)
    run = opened(tmp_path)
    assert stood(run)[0] == 2
    member = Alone(run).run.member
    assert member.log.register.parts[0].round == 3
    assert member.certified.newest == 3


def test_a_damaged_log_is_gone_on_with_in_another_life(tmp_path: Path) -> None:
    played(tmp_path, 3)
    path = log_of(tmp_path) / JOURNAL
    spoiled = bytearray(path.read_bytes())
    spoiled[-30] ^= 1
    path.write_bytes(spoiled)
    run = opened(tmp_path)
    assert stood(run)[0] >= 2
    assert run._make_member().log.core.life > FOUNDING_LIFE


def test_a_state_that_the_seed_does_not_give_any_more_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of torch may draw other numbers; then the log is about a state that is not made here."""
    played(tmp_path, 2)

    def drawn(manifest: Manifest, held: CommittedState | None, trains: bool) -> OuterState:
        return OuterState(manifest, held if held is not None else state(0), trains)

    monkeypatch.setattr(agreed_run, "OuterState", drawn)
    run = opened(tmp_path)
    assert run.outer.root == state(0).current.root, "no result is applied to another state than it was made on"


def test_the_origin_of_a_run_is_not_downloaded_by_who_came_with_it(tmp_path: Path) -> None:
    checkpoint = load(write(tmp_path, 4))
    manifest = with_origin(MANIFEST, checkpoint)
    assert opened(tmp_path, manifest)._base is None, "it has no state, and asks others for it"
    (home := tmp_path / "with").mkdir()
    base = Alone(opened(home, manifest, checkpoint, is_founding=True)).goes_on(2)
    run = opened(home, manifest, checkpoint)
    assert stood(run) == (6, base.history, checkpoint.about.samples + 2 * TOKENS)
    assert opened(home, manifest)._base is None, "the means alone are no state"


def test_what_is_of_another_run_is_not_touched(tmp_path: Path) -> None:
    played(tmp_path, 1)
    foreign: Any = MANIFEST.model_copy(update={"name": "another"})
    folder = tmp_path / id_of(MANIFEST, ME).hex() / CHECKPOINTS
    held = state(1)
    about = About.of(
        foreign, id_of(foreign), Base(1, 1, digest("x"), held.current.root), (), samples=5, peer=ME, inner_steps=0
    )
    path = write_checkpoint(folder, about, held.current, None)
    assert stood(opened(tmp_path))[0] == 1
    assert path.exists()

"""What a run writes when it stops: its rest if nobody else may go on with it, and nothing if others do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.manifest.manifest import Manifest, OriginSpec
from shoal.node.run.resting import FOLDER, load_rest
from shoal.node.run.saving import Saving
from shoal.node.run.settings import RunSettings
from shoal.node.supervisor.training import Training
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.training.state.committed import CommittedState
from shoal.protocol.base.errors import LocalError
from shoal.protocol.member.member import Member
from shoal.protocol.rounds.agreement.history import History
from shoal.protocol.rounds.rest import Rest
from tests.unit.checkpoint_kit import MANIFEST, ME, moments, state
from tests.unit.rounds_kit import BASE, ROUND, SIGNER, certificate
from tests.unit.test_rest import REST

HELD = state(ROUND)
KEPT = dataclasses.replace(REST, round=ROUND, root=HELD.current.root, decisions=(), draft=())


class Stopped(SimpleNamespace):
    """The part of a member that a stop uses."""

    def __init__(self, rest: Rest | None, has_signed_off: bool) -> None:
        history = History(BASE, SIGNER)
        history.append(certificate())
        departure = SimpleNamespace(has_signed_off=has_signed_off)
        super().__init__(rest=lambda: rest, history=history, rounds=SimpleNamespace(departure=departure))


class Trained(SimpleNamespace):
    """A training that has moments."""

    async def moments(self) -> Any:
        return moments(HELD)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return folder_of(tmp_path, MANIFEST)


def folder_of(home: Path, manifest: Manifest) -> Path:
    folder = home / manifest.run_id.hex()
    folder.mkdir()
    return folder


def saving(folder: Path, manifest: Manifest = MANIFEST, held: CommittedState = HELD) -> Saving:
    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    settings = RunSettings(folder, 1, (), True, Keeping(), None)
    return Saving(manifest, ME, held, settings, spawn)


async def end(
    each: Saving, rest: Rest | None = KEPT, *, signed_off: bool = False, trained: bool = True, for_good: bool = False
) -> None:
    member, training = cast(Member, Stopped(rest, signed_off)), cast(Training, Trained()) if trained else None
    await each.end(member, training, for_good)


@pytest.mark.asyncio
@pytest.mark.parametrize("trained", [True, False])
async def test_what_nobody_else_may_have_is_kept_with_its_tokens_and_moments(run: Path, trained: bool) -> None:
    await end(saving(run), trained=trained)
    found = load_rest(run)
    assert found is not None
    assert found.rest == KEPT
    assert found.checkpoint is not None
    made_by = certificate().proposal
    assert found.checkpoint.about.samples == made_by.samples > 0
    assert found.checkpoint.about.members == made_by.members
    assert (found.checkpoint.moments is not None) == trained


@pytest.mark.asyncio
async def test_the_state_that_a_run_goes_on_from_is_kept_too(tmp_path: Path) -> None:
    held = state(BASE.round)
    root, history = held.current.root.hex(), BASE.history.hex()
    origin = OriginSpec(run="ab" * 32, round=BASE.round, history=history, root=root, samples=77, nonce="0" * 32)
    manifest = MANIFEST.model_copy(update={"origin": origin})
    folder, rest = folder_of(tmp_path, manifest), dataclasses.replace(REST, root=held.current.root)
    await end(saving(folder, manifest, held), rest)
    found = load_rest(folder)
    assert found is not None
    assert found.rest == rest
    assert found.checkpoint is not None
    assert found.checkpoint.committed().current.root == held.current.root
    assert (found.checkpoint.about.samples, found.checkpoint.about.history) == (77, history)


@pytest.mark.asyncio
@pytest.mark.parametrize(("signed_off", "for_good"), [(True, False), (False, True), (True, True)])
async def test_it_is_forgotten_once_others_go_on_or_we_left_for_good(
    run: Path, signed_off: bool, for_good: bool
) -> None:
    await end(saving(run))
    await end(saving(run), KEPT if for_good else None, signed_off=signed_off, for_good=for_good)
    assert not (run / FOLDER).exists()


@pytest.mark.asyncio
async def test_it_stays_as_long_as_others_are_not_known_to_go_on(run: Path) -> None:
    await end(saving(run))
    await end(saving(run), None)
    assert load_rest(run) is not None


@pytest.mark.asyncio
@pytest.mark.parametrize(("last", "trains_on"), [(ROUND, False), (ROUND + 1, True)])
async def test_a_finished_run_is_found_finished_and_without_moments(tmp_path: Path, last: int, trains_on: bool) -> None:
    manifest = MANIFEST.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"last": last})})
    folder = folder_of(tmp_path, manifest)
    await end(saving(folder, manifest))
    found = load_rest(folder)
    assert found is not None
    assert found.checkpoint is not None
    assert (found.checkpoint.moments is not None) == trains_on


@pytest.mark.asyncio
async def test_what_cannot_be_kept_is_an_error_that_names_the_run(run: Path) -> None:
    (run / FOLDER).write_text("no folder")
    with pytest.raises(LocalError, match=rf"cannot keep the run.*all members of {MANIFEST.name} stop"):
        await end(saving(run))


@pytest.mark.asyncio
async def test_nothing_is_kept_in_a_home_that_was_removed(run: Path) -> None:
    each = saving(run)
    run.rmdir()
    await end(each)
    assert not run.exists()

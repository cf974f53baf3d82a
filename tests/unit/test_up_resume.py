"""From which round an earlier play is resumed, and which peers bring checkpoints."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.base.options import UpOptions, UsageError
from shoal.node.client.up import job
from shoal.node.client.up.plan import make_plan
from shoal.node.client.up.resume import Resumption, choose, survey
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.scan import CHECKPOINTS, folder_name
from shoal.protocol.base.errors import LocalError
from tests.unit.checkpoint_kit import write


def play(out: Path, rounds: Mapping[int, Sequence[int]]) -> Path:
    """The folder of a play: for each peer's number, the rounds of which it holds checkpoints."""
    for number, held in rounds.items():
        home = Home(out / f"peers/peer-{number}/home").create()
        home.identity_key.write_bytes(b"key %d" % number)
        home.identity_key.chmod(0o600)
        for round in held:
            write(home.run_folder("ab" * 32) / CHECKPOINTS, round)
    return out


def at(out: Path, number: int, round: int) -> Path:
    return out / f"peers/peer-{number}/home/runs/{'ab' * 32}" / CHECKPOINTS / folder_name(round)


async def chosen(out: Path, damaged: Sequence[Path] = ()) -> tuple[Resumption, list[str]]:
    said: list[str] = []

    async def damage(paths: Sequence[Path]) -> dict[str, str]:
        return {str(path): f"{path} is torn" for path in paths if path in damaged}

    return await choose(out, damage, said.append), said


@pytest.mark.asyncio
async def test_the_newest_round_that_enough_hold(tmp_path: Path) -> None:
    out = play(tmp_path, {1: (4,), 2: (4, 8), 3: (4, 8), 10: ()})  # of the kit's rounds, which have two members
    resumed, said = await chosen(out)
    assert resumed.round == 8
    assert resumed.peers == ("peer-2", "peer-3", "peer-1", "peer-10")  # who holds it first: one of them founds the run
    assert resumed.checkpoints == {"peer-2": at(out, 2, 8), "peer-3": at(out, 3, 8)}
    assert not said


@pytest.mark.asyncio
async def test_what_is_damaged_is_passed_over_aloud(tmp_path: Path) -> None:
    out = play(tmp_path, {1: (4, 8), 2: (4, 8)})
    (at(out, 1, 8) / MODEL).unlink()
    resumed, said = await chosen(out, damaged=[at(out, 2, 8)])
    assert resumed.round == 4
    assert len(said) == 2
    assert all("passed over" in sentence for sentence in said)


@pytest.mark.asyncio
async def test_the_manifest_goes_on_with_all_peers(tmp_path: Path) -> None:
    resumed, _ = await chosen(play(tmp_path, {1: (4,), 2: (4,), 3: ()}))
    manifest = resumed.manifest(last=9)
    assert (manifest.rounds.last, manifest.rounds.start_members, manifest.first_round) == (9, 3, 5)
    plan = make_plan(UpOptions(resume=tmp_path, rounds=9, kill_at=None, join_at=None), tmp_path, manifest, resumed)
    assert (plan.facts()["resumed_from"], plan.facts()["rounds"], plan.to_commit) == (4, 9, 5)
    with pytest.raises(UsageError, match="has come to round 4"):
        resumed.manifest(last=4)


@pytest.mark.asyncio
async def test_a_peer_keeps_its_key(tmp_path: Path) -> None:
    resumed, _ = await chosen(play(tmp_path / "old", {1: (4,), 2: (4,)}))
    home = Home(tmp_path / "new")
    resumed.hand_key("peer-2", home)
    assert home.secret("identity.key", bytes) == b"key 2"


@pytest.mark.asyncio
async def test_too_few_checkpoints_and_no_play_at_all(tmp_path: Path) -> None:
    out = play(tmp_path, {1: (4,), 2: ()})
    with pytest.raises(UsageError, match="of no round do enough of its 2 peers"):
        await chosen(out, damaged=[at(out, 1, 4)])
    shutil.rmtree(out / "peers")
    with pytest.raises(UsageError, match="not the folder of an earlier"):
        survey(out)


def test_a_checkpoint_on_a_disk_that_is_away_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise LocalError(f"{path} cannot be read") from OSError(number, os.strerror(number))

    monkeypatch.setattr(job, "load", load)
    number = errno.EIO
    assert list(job.verify(str(tmp_path))["damaged"]) == [str(tmp_path)]
    number = errno.ESTALE
    with pytest.raises(LocalError, match="cannot be read"):
        job.verify(str(tmp_path))

"""Checkpoints on disk: complete or absent, verified to the last byte, and never more than should be kept."""

from __future__ import annotations

import errno
import json
import logging
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shoal.node.training.checkpoint import keep
from shoal.node.training.checkpoint.about import ABOUT, INNER, MODEL, OUTER
from shoal.node.training.checkpoint.keep import Keeper, Keeping, prune
from shoal.node.training.checkpoint.read import load, load_newest
from shoal.node.training.checkpoint.scan import CHECKPOINTS, find, folder_name
from shoal.node.training.checkpoint.write import sweep, write_checkpoint
from shoal.node.training.models import tensor_file
from shoal.node.training.state.committed import Snapshot
from shoal.protocol.base.errors import LocalError
from tests.unit.checkpoint_kit import MANIFEST, ME, OTHER, about, moments, state, write
from tests.unit.disk_kit import RENAMED, DiskLog


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_loaded_to_the_bit(tmp_path: Path) -> None:
    held, path = state(4), write(tmp_path, 4)
    loaded = load(path)
    for name in held.shape.vectors:
        assert torch.equal(loaded.vectors[name], held.current.vectors[name])
    assert loaded.committed().current.root == held.current.root
    assert loaded.moments is not None
    assert np.array_equal(loaded.moments, moments(held))
    assert loaded.manifest == MANIFEST
    assert (loaded.about.members, loaded.about.peer, loaded.about.samples) == ((OTHER, ME), ME, 1000)
    assert names(tmp_path) == [folder_name(4)]


def test_its_bytes_are_on_disk_before_its_name_is_and_its_name_before_it_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DiskLog(monkeypatch)
    path = write(tmp_path, 4)
    files = list(path.iterdir())
    order = log.order(*files, path, tmp_path)
    assert set(order[: len(files)]) == {file.name for file in files}
    assert order[len(files) :] == [path.name, RENAMED, tmp_path.name]


def test_the_tensors_have_their_hugging_face_names(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    model, outer, inner = (load_file(path / name) for name in (MODEL, OUTER, INNER))
    assert model["model.layers.0.self_attn.q_proj.weight"].shape == (16, 16)
    assert outer.keys() == model.keys()
    assert inner.keys() == {f"{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq") for name in model}


def test_who_does_not_train_has_no_moments(tmp_path: Path) -> None:
    held = state(4)
    path = write_checkpoint(tmp_path, about(held, inner_steps=0), held.current, None)
    assert load(path).moments is None
    assert not (path / INNER).exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", [ABOUT, MODEL, OUTER, INNER])
@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
def test_a_torn_checkpoint_is_refused_and_the_one_before_it_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, harm: Callable[[Path], None]
) -> None:
    write(tmp_path, 4)
    harm(write(tmp_path, 6) / name)  # renamed, but its contents never came to disk
    with pytest.raises(LocalError):
        load(tmp_path / folder_name(6))
    with caplog.at_level(logging.WARNING):
        found = load_newest(tmp_path)
    assert found is not None
    assert found.about.round == 4
    assert [record.code for record in caplog.records] == ["checkpoint-skipped"]  # type: ignore[attr-defined]
    assert folder_name(6) in caplog.text


def test_files_of_another_state_are_refused_even_if_each_is_whole(tmp_path: Path) -> None:
    """The root is that of the state, not of the files: hashes that somebody made to fit do not help."""
    held, other = state(4), state(5)
    mixed = Snapshot(held.shape, 4, {**other.current.vectors}, other.current.chunk_hashes, held.current.root)
    path = write_checkpoint(tmp_path, about(held), mixed, moments(held))
    with pytest.raises(LocalError, match="another state"):
        load(path)


def test_a_foreign_json_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    for text in ("", "[]", "{}", '{"seal": 1}', "nonsense", json.dumps({"seal": "0" * 64}), "[" * 100_000):
        (path / ABOUT).write_text(text)
        with pytest.raises(LocalError):
            load(path)


def test_no_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "nowhere") is None
    (tmp_path / f".{folder_name(4)}.1.new").mkdir()
    assert load_newest(tmp_path) is None
    assert find(tmp_path) == []
    with pytest.raises(LocalError, match="not a folder"):
        find(tmp_path / "nowhere")


def full(descriptor: int, data: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing_and_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 4)
    monkeypatch.setattr(tensor_file, "_write_all", full)
    with pytest.raises(LocalError, match="No space left") as refused:
        write(tmp_path, 6)
    assert refused.value.code == "no-room"
    assert names(tmp_path) == [folder_name(4)]


def test_a_whole_one_of_the_same_round_stays_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    first = write(tmp_path, 4)
    written = (first / ABOUT).stat().st_mtime_ns
    write(tmp_path, 4)
    assert (first / ABOUT).stat().st_mtime_ns == written
    halve(first / MODEL)
    write(tmp_path, 4)
    assert load(first).about.round == 4


def test_what_another_history_has_made_is_set_aside_and_ours_is_kept(tmp_path: Path) -> None:
    """A founder that lost its home founds the same run again: its rounds have numbers that were here before."""
    folder = tmp_path / CHECKPOINTS
    before = {round: load(write(folder, round)).about.root for round in (2, 4, 6)}
    ours = write(folder, 4, history=1)
    prune(folder, 2)
    assert load(ours).about.root not in before.values()
    assert names(folder) == [folder_name(2), folder_name(4)]
    kept = {
        each.about.round: each.about.root for each in find(tmp_path) if each.about and "set-aside" in str(each.path)
    }
    assert kept == {4: before[4], 6: before[6]}
    write(folder, 6)
    write(folder, 5, history=1)  # that of round 6 is there already
    assert names(folder) == [folder_name(round) for round in (2, 4, 5)]


def test_the_newest_are_kept_and_damaged_ones_do_not_count(tmp_path: Path) -> None:
    for round in (2, 4, 6, 8, 10):
        write(tmp_path, round)
    halve(tmp_path / folder_name(6) / MODEL)
    prune(tmp_path, 3)
    assert names(tmp_path) == [folder_name(round) for round in (4, 6, 8, 10)]
    prune(tmp_path, 1)
    assert names(tmp_path) == [folder_name(10)]


def test_what_a_crash_left_is_swept_away(tmp_path: Path) -> None:
    write(tmp_path, 4)
    for name in (f".{folder_name(6)}.7.new", f".{folder_name(2)}.gone"):
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert names(tmp_path) == [folder_name(4)]


@pytest.mark.asyncio
async def test_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Keeping(every=4), last=10)
    assert [round for round in range(1, 11) if keeper.is_due(round)] == [4, 8, 10]
    assert [round for round in range(1, 11) if keeper.is_due(round, is_busy=True)] == [10]
    assert not Keeper(tmp_path, Keeping(every=0), last=10).is_due(10)


@pytest.mark.asyncio
async def test_what_a_checkpoint_took_is_given_back_when_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, seen = state(1), list[bool]()
    copied = moments(held)
    gone = weakref.ref(copied)
    monkeypatch.setattr(keep, "trim", lambda: seen.append(gone() is None))
    writing_it = Keeper(tmp_path, Keeping(), last=None).write(held.lease(), about(held), copied)
    del copied
    await writing_it
    assert seen == [True]


@pytest.mark.asyncio
async def test_the_keeper_writes_prunes_and_lets_go(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Keeping(every=1, kept=2), last=None)
    for round in (1, 2, 3):
        held = state(round)
        await keeper.write(held.lease(), about(held), moments(held))
        assert not held._leases
    assert names(tmp_path) == [folder_name(2), folder_name(3)]
    assert keeper.newest == Keeper(tmp_path, Keeping(), last=None).newest == 3


@pytest.mark.asyncio
async def test_a_full_disk_costs_the_keeper_a_checkpoint_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, held = Keeper(tmp_path, Keeping(every=1, kept=1), last=None), state(2)
    write(tmp_path, 1)
    monkeypatch.setattr(tensor_file, "_write_all", full)
    with caplog.at_level(logging.WARNING):
        await keeper.write(held.lease(), about(held), moments(held))
    assert [record.code for record in caplog.records] == ["checkpoint-failed"]  # type: ignore[attr-defined]
    assert not held._leases
    assert names(tmp_path) == [folder_name(1)]  # nothing is removed before the newest is whole

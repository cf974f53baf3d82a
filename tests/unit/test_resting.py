"""A run at rest on disk: complete, or as if it were not there."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from shoal.node.run import resting
from shoal.node.run.resting import FOLDER, MESSAGES, Rested, forget_rest, load_rest, rest_on, save_rest
from shoal.node.training.checkpoint.about import INNER, MODEL
from shoal.node.training.checkpoint.scan import folder_name
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.protocol.base.errors import LocalError, Shortage
from shoal.protocol.base.ids import digest
from shoal.protocol.rounds.rest import Rest
from tests.unit.checkpoint_kit import MANIFEST, about, moments, state
from tests.unit.disk_kit import RENAMED, DiskLog
from tests.unit.rounds_kit import certificate
from tests.unit.test_rest import REST

HELD = state(REST.newest)
STATE = folder_name(REST.newest)
LATER = dataclasses.replace(REST, round=REST.newest, root=HELD.current.root, decisions=(), draft=())
FIRST = dataclasses.replace(certificate(), proposal=dataclasses.replace(certificate().proposal, round=1))
SEEDED = dataclasses.replace(LATER, round=0, chain=(FIRST,))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / MANIFEST.run_id.hex()
    folder.mkdir()
    return folder


def keep(run: Path, rest: Rest = LATER) -> None:
    save_rest(run, rest, about(HELD), HELD.current, moments(HELD))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_kept_is_found_with_its_state(run: Path) -> None:
    assert load_rest(run) is None
    keep(run)
    keep(run)
    found = load_rest(run)
    assert found is not None
    assert found.rest == LATER
    assert found.checkpoint is not None
    assert found.checkpoint.committed().current.root == HELD.current.root
    assert found.checkpoint.moments is not None


def test_the_state_that_the_seed_gives_is_not_written(run: Path) -> None:
    keep(run)
    save_rest(run, SEEDED, None, HELD.current, None)
    assert names(run / FOLDER) == [MESSAGES]
    found = load_rest(run)
    assert found is not None
    assert (found.rest, found.checkpoint) == (SEEDED, None)


def test_a_rest_is_gone_on_from_only_on_its_own_state(caplog: pytest.LogCaptureFixture) -> None:
    rested = Rested(LATER, None)
    assert rest_on(LATER.root, None) is None
    assert rest_on(LATER.root, rested) is LATER
    assert caplog.text == ""
    assert rest_on(digest("what another torch makes of the seed"), rested) is None
    assert "cannot be used" in caplog.text


def test_the_messages_are_written_after_their_state(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DiskLog(monkeypatch)
    keep(run)
    folder = run / FOLDER
    expected = [MODEL, RENAMED, FOLDER, MESSAGES, RENAMED, FOLDER]
    assert log.order(folder / STATE / MODEL, folder / MESSAGES, folder) == expected


@pytest.mark.parametrize("file", [MESSAGES, f"{STATE}/{MODEL}"])
def test_a_damaged_one_is_passed_over_and_stays(file: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(run)
    path = run / FOLDER / file
    path.write_bytes(path.read_bytes()[:-1])
    assert load_rest(run) is None
    assert "cannot be used" in caplog.text
    assert path.exists()


def test_no_byte_of_the_messages_can_change(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(run)
    path = run / FOLDER / MESSAGES
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert load_rest(run) is None, at
    path.write_bytes(whole)
    assert load_rest(run) is not None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOTCONN])
@pytest.mark.parametrize("file", [MESSAGES, f"{STATE}/{MODEL}", "."])
def test_one_on_a_disk_that_is_away_is_not_passed_over(
    file: str, number: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(run)

    def away(path: Path, *more: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    if file == MESSAGES:
        monkeypatch.setattr(Path, "open", away)
    elif file == ".":
        monkeypatch.setattr(Path, "stat", away)
    else:
        hasher = SimpleNamespace(update_mmap=away)
        monkeypatch.setattr("shoal.node.training.checkpoint.read.blake3", Mock(return_value=hasher))
    with pytest.raises(Shortage, match=f"cannot read what was kept of the run in .*: .*{os.strerror(number)}"):
        load_rest(run)


def test_messages_about_another_state_are_passed_over(run: Path) -> None:
    keep(run, dataclasses.replace(LATER, root=REST.root))
    assert load_rest(run) is None


def test_what_is_of_another_run_is_passed_over(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(run)
    other = run.with_name("ab" * 32)
    shutil.copytree(run, other)
    assert load_rest(other) is None
    assert "its seal is broken" in caplog.text
    save_rest(other, LATER, about(HELD), HELD.current, None)
    assert load_rest(other) is None
    assert "is another state" in caplog.text


def test_it_is_forgotten(run: Path) -> None:
    forget_rest(run)
    keep(run)
    forget_rest(run)
    assert names(run) == []


def test_who_dies_while_it_is_forgotten_leaves_no_messages(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    keep(run)
    monkeypatch.setattr(shutil, "rmtree", fails)
    forget_rest(run)
    assert "cannot remove" in caplog.text
    assert names(run / FOLDER) == [STATE]
    caplog.clear()
    assert load_rest(run) is None
    assert caplog.text == ""


def test_an_older_state_that_cannot_be_removed_costs_only_room(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    write_checkpoint(run / FOLDER, about(state(1)), state(1).current, None)
    monkeypatch.setattr(resting, "remove", fails)
    keep(run)
    assert "cannot remove an older state" in caplog.text
    assert load_rest(run) is not None


def test_a_disk_that_cannot_take_it_is_named(run: Path) -> None:
    (run / FOLDER).write_text("no folder")
    with pytest.raises(LocalError, match="cannot keep the run"):
        keep(run)


def test_a_folder_that_was_removed_does_not_come_back(run: Path) -> None:
    run.rmdir()
    with pytest.raises(LocalError, match="No such file or directory"):
        keep(run)
    assert not run.exists()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_only_on_a_full_disk_it_is_kept_without_moments(
    reason: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path, about: Any, snapshot: Any, moments: Any) -> Path:
        if moments is not None:
            raise LocalError("cannot write the checkpoint") from OSError(reason, os.strerror(reason))
        return write_checkpoint(folder, about, snapshot, moments)

    monkeypatch.setattr(resting, "write_checkpoint", write)
    if reason != errno.ENOSPC:
        with pytest.raises(LocalError):
            keep(run)
        return
    keep(run)
    found = load_rest(run)
    assert found is not None
    assert found.checkpoint is not None
    assert found.checkpoint.moments is None
    assert INNER not in names(run / FOLDER / STATE)

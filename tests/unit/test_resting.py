"""A run at rest on disk: whole, or as if it were not there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from shoal.node.resting import FOLDER, WORDS, forget_rest, load_rest, save_rest
from shoal.protocol.errors import LocalError
from shoal.protocol.rest import Rest
from tests.unit.checkpoint_kit import about, moments, state
from tests.unit.test_rest import REST

HELD = state(REST.newest)
LATER = dataclasses.replace(REST, round=REST.newest, root=HELD.current.root, decisions=(), draft=())


def keep(run: Path, rest: Rest = LATER) -> None:
    save_rest(run, rest, about(HELD), HELD.current, moments(HELD))


def test_what_is_kept_is_found_with_its_state(tmp_path: Path) -> None:
    assert load_rest(tmp_path) is None
    keep(tmp_path)
    keep(tmp_path)
    found = load_rest(tmp_path)
    assert found is not None
    assert found.rest == LATER
    assert found.checkpoint is not None
    assert found.checkpoint.committed().current.root == HELD.current.root
    assert found.checkpoint.moments is not None


def test_a_state_that_the_run_began_with_is_not_written(tmp_path: Path) -> None:
    keep(tmp_path)
    save_rest(tmp_path, REST, None, HELD.current, None)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [WORDS]
    found = load_rest(tmp_path)
    assert found is not None
    assert (found.rest, found.checkpoint) == (REST, None)


@pytest.mark.parametrize("file", [WORDS, f"round-{HELD.current.round:08}/model.safetensors"])
def test_a_damaged_one_is_passed_over_and_stays(file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(tmp_path)
    path = tmp_path / FOLDER / file
    path.write_bytes(path.read_bytes()[:-1])
    assert load_rest(tmp_path) is None
    assert "cannot be used" in caplog.text
    assert path.exists()


def test_words_about_another_state_are_passed_over(tmp_path: Path) -> None:
    keep(tmp_path, dataclasses.replace(LATER, root=REST.root))
    assert load_rest(tmp_path) is None


def test_it_is_forgotten(tmp_path: Path) -> None:
    forget_rest(tmp_path)
    keep(tmp_path)
    forget_rest(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_take_it_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("no folder")
    with pytest.raises(LocalError, match="cannot keep the run"):
        keep(tmp_path)

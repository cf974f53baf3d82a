"""A run that was stopped and resumed gives what an unstopped one gives, bit for bit; so does one that is played again.

Compared are the mean loss of each peer in each round, the digest of each round's result, and, where there are
checkpoints, roots and moments: those of AdamW are equal only if each step's gradient was. The plays that are compared
with the first one have to share the processors with others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.training.checkpoint.scan import find

MANIFEST = """
name = "tiny"
seed = 3
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
inner_steps = 3
batch = 4
warmup_steps = 5
inner_lr = 5e-3
[rounds]
min_members = 3
chunk_bytes = 8192
[codec]
scatter = "int8"
[goal]
loss_ratio = 1.5
"""
PATIENCE = 240.0
THIEVES = 2 * (os.cpu_count() or 1)
CALM = ("--kill-at", "none", "--join-at", "none")


def up(out: Path, *flags: str) -> dict[str, Any]:
    """Play; what it printed."""
    argv = [sys.executable, "-P", "-m", "shoal.node", "up", "--out", str(out), "--json", "--checkpoint-every", "2"]
    done = subprocess.run([*argv, *flags], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def checkpoints(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The checkpoints that each peer, by its key's name, has written after each round."""
    found = [each.about for each in find(out)]
    assert all(about is not None for about in found)
    return {(about.peer, about.round): about.model_dump() for about in found if about is not None}


def losses(out: Path) -> dict[tuple[int, str], tuple[float, int, str]]:
    """Each peer's report of each round: its mean loss, its tokens, and the digest of the result."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["kind"] == "round"]
    return {(each["round"], each["peer"]): (each["loss"], each["tokens"], each["digest"]) for each in rounds}


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """More who want the processors than there are."""
    thieves = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(THIEVES)]
    yield
    for thief in thieves:
        thief.kill()
        thief.wait()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The flags of a play to round 8 on a text of sheep."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    return ("--rounds", "8", "--data", str(file))


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory: pytest.TempPathFactory, text: tuple[str, ...]) -> Path:
    """The folder of a play of eight rounds that nothing disturbed."""
    out = tmp_path_factory.mktemp("unstopped") / "out"
    manifest = out.with_name("manifest.toml")
    manifest.write_text(MANIFEST)
    up(out, *text, *CALM, "--peers", "3", "--manifest", str(manifest))
    return out


def stopped_after(round: int, unstopped: Path, copy: Path) -> Path:
    """A copy of the play's folder as it was after an earlier round."""
    shutil.copytree(unstopped, copy, ignore=shutil.ignore_patterns("*.sock"))
    for found in find(copy):
        if found.about is not None and found.about.round > round:
            shutil.rmtree(found.path)
    return copy


def result(out: Path) -> dict[str, Any]:
    last: dict[str, Any] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return last


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_the_same_seed_gives_the_same_bits(unstopped: Path, text: tuple[str, ...], tmp_path: Path) -> None:
    again = up(tmp_path / "again", *text, *CALM, "--peers", "3", "--manifest", str(unstopped / "manifest.toml"))
    assert losses(tmp_path / "again") == losses(unstopped)
    assert len(losses(unstopped)) == 3 * 8
    assert {each["digest"] for each in again["peers"]} == {each["digest"] for each in result(unstopped)["peers"]}


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(
    unstopped: Path, text: tuple[str, ...], tmp_path: Path
) -> None:
    expected, whole = checkpoints(unstopped), result(unstopped)
    assert sorted({round for _, round in expected}) == [4, 6, 8]
    resumed = up(tmp_path / "later", *text, "--resume", str(stopped_after(4, unstopped, tmp_path / "stopped")))

    assert resumed["resumed_from"] == 4
    assert [each["round"] for each in resumed["committed"]] == [5, 6, 7, 8]
    expected_losses = {place: seen for place, seen in losses(unstopped).items() if place[0] > 4}
    assert losses(tmp_path / "later") == expected_losses
    assert len(expected_losses) == 12
    assert [each["digest"] for each in resumed["committed"]] == [each["digest"] for each in whole["committed"][4:]]
    assert resumed["val_loss"] == whole["val_loss"]
    assert {each["digest"] for each in resumed["peers"]} == {each["digest"] for each in whole["peers"]}
    again = checkpoints(tmp_path / "later")
    assert len(again) == 6
    for place, about in again.items():
        for key in ("round", "history", "root", "samples", "members", "inner_steps", "files"):
            assert about[key] == expected[place][key], (place, key)  # equal moments: each step's gradient was equal
    assert len({about["run"] for about in (*expected.values(), *again.values())}) == 2  # a new lineage


@pytest.mark.slow
def test_a_peer_without_a_checkpoint_downloads_the_state(
    unstopped: Path, text: tuple[str, ...], tmp_path: Path
) -> None:
    stopped = stopped_after(4, unstopped, tmp_path / "stopped")
    shutil.rmtree(next(path for path in (stopped / "peers/peer-3/home/runs").glob("*/checkpoints")))
    resumed = up(tmp_path / "later", *text, "--resume", str(stopped))
    assert [each["round"] for each in resumed["committed"]] == [5, 6, 7, 8]
    assert {each["members"] for each in resumed["committed"]} == {3}
    assert len({each["digest"] for each in resumed["peers"]}) == 1
    words = (tmp_path / "later/logs/peer-3.log").read_text()
    assert "caught up with round 4" in words

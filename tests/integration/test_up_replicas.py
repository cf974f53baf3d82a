"""`shoal up` where weights differ from peer to peer: each is measured beside the state that all agree on in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_up import MANIFEST, PATIENCE

ROUNDS = 9


@pytest.mark.slow  # minutes; what it puts together is tested piece by piece
@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_replicas_are_measured_and_merged(tmp_path: Path, name: str) -> None:
    answer = play(tmp_path, f'name = "{name}"', kill_at=ROUNDS)  # the round in which nobody is left over
    replicas = answer["replicas"]
    assert replicas["agreed"] == answer["val_loss"] <= replicas["mean"] + 0.1
    assert abs(replicas["agreed"] - replicas["merged"]) < 1e-3, "who came late has its replica to show"
    assert len({each["digest"] for each in answer["peers"] if each["outcome"] != "killed"}) == 1
    assert answer["committed"][-1]["contributors"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rounds"), [("diloco-eager", ROUNDS), ("streaming-diloco", 2 * ROUNDS)])
def test_what_workers_have_of_their_own_is_told_beside_what_they_agree_on(
    tmp_path: Path, name: str, rounds: int
) -> None:
    outer = "outer_lr = 0.5\nouter_momentum = 0.0"  # means come late
    answer = play(tmp_path, f'name = "{name}"\n{outer}', rounds, layers=2)  # of which fragments can be made
    replicas = answer["replicas"]
    assert replicas["agreed"] == answer["val_loss"]
    assert replicas["spread"] > 0
    assert replicas["merged"] <= replicas["mean"] + 0.1
    assert len({each["digest"] for each in answer["peers"] if each["outcome"] != "killed"}) == 1
    owns = [(tmp_path / "out" / "peers" / f"peer-{n}" / "own.safetensors").read_bytes() for n in (1, 2, 3, 5)]
    assert len(set(owns)) == 4
    assert "the state that all agree on" in (tmp_path / "out" / "report.html").read_text()


def play(folder: Path, method: str, rounds: int = ROUNDS, layers: int = 1, kill_at: int = 2) -> dict[str, Any]:
    """The result of a play of `shoal up` with four peers, of which one dies, and one that joins."""
    outer = "outer_lr = 1.0\nouter_momentum = 0.0\n"
    manifest = MANIFEST.replace(outer, f"{method}\n").replace("chunk_bytes = 8192", "chunk_bytes = 4096")
    assert outer not in manifest
    (folder / "manifest.toml").write_text(manifest.replace("layers = 1", f"layers = {layers}"))
    (folder / "text.txt").write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", "4", "--rounds", str(rounds)]
    argv += [
        "--kill-at",
        str(kill_at),
        "--device",
        "cpu",
        "--join-at",
        "2",
        "--manifest",
        str(folder / "manifest.toml"),
    ]
    argv += ["--data", str(folder / "text.txt"), "--out", str(folder / "out"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    outcomes = {each["peer"]: each["outcome"] for each in answer["peers"]}
    assert outcomes == {**{f"peer-{n}": "finished" for n in (1, 2, 3)}, "peer-4": "killed", "peer-5": "joined"}
    assert len(answer["replicas"]["each"]) == 4
    assert answer["replicas"]["spread"] < 0.5
    assert answer["val_loss"] < 0.9 * answer["initial_val_loss"]
    assert (folder / "out" / "merged.safetensors").exists()
    assert "4 replicas: validation loss" in (folder / "out" / "report.html").read_text()
    return answer

"""`shoal up` with replicas: nobody agrees with anybody, one dies, one comes, and what counts is the mean of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_up import MANIFEST, PATIENCE

ROUNDS = 9


@pytest.mark.slow  # minutes; what it puts together is tested piece by piece
@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_replicas_are_measured_and_merged(tmp_path: Path, name: str) -> None:
    outer = "outer_lr = 1.0\nouter_momentum = 0.0\n"
    manifest = MANIFEST.replace(outer, f'name = "{name}"\n').replace("chunk_bytes = 8192", "chunk_bytes = 4096")
    assert outer not in manifest
    (tmp_path / "manifest.toml").write_text(manifest)
    (tmp_path / "text.txt").write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", "4", "--rounds", str(ROUNDS), "--kill-at", "2"]
    argv += ["--device", "cpu", "--join-at", "2", "--manifest", str(tmp_path / "manifest.toml")]
    argv += ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])

    outcomes = {each["peer"]: each["outcome"] for each in answer["peers"]}
    assert outcomes == {**{f"peer-{n}": "finished" for n in (1, 2, 3)}, "peer-4": "killed", "peer-5": "joined"}
    replicas = answer["replicas"]
    assert len(replicas["each"]) == 4
    assert replicas["merged"] == answer["val_loss"] <= replicas["mean"] + 0.1
    assert replicas["spread"] < 0.5
    assert answer["val_loss"] < 0.9 * answer["initial_val_loss"]
    assert (tmp_path / "out" / "merged.safetensors").exists()
    assert "4 replicas: validation loss" in (tmp_path / "out" / "report.html").read_text()

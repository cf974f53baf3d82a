"""`shoal up` for real, as small as it can be: three daemons that train, one dies, one comes, all agree."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MANIFEST = """
name = "tiny"
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 64
[method]
inner_steps = 75
batch = 8
warmup_steps = 5
inner_lr = 5e-3
outer_lr = 1.0
outer_momentum = 0.0
[rounds]
chunk_bytes = 8192
[goal]
loss_ratio = 0.9
"""
PATIENCE = 240.0
ROUNDS = 9  # enough that the newcomer, which has torch to load first, is in the last one on a busy machine too


@pytest.mark.slow
@pytest.mark.swarm
def test_a_death_and_an_arrival(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "text.txt").write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", "3", "--rounds", str(ROUNDS), "--kill-at", "2"]
    argv += ["--device", "cpu"]  # on a GPU the rounds are over before a newcomer has loaded torch
    argv += ["--join-at", "2", "--manifest", str(tmp_path / "manifest.toml"), "--data", str(tmp_path / "text.txt")]
    argv += ["--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])

    assert [each["round"] for each in answer["committed"]] == list(range(1, ROUNDS + 1))
    fatal = answer["committed"][1]
    assert fatal["members"] in (3, 4)  # the newcomer may be that quick
    assert fatal["members"] - fatal["contributors"] in (0, 1)  # chunks this small may all have left in one write
    outcomes = {each["peer"]: each["outcome"] for each in answer["peers"]}
    assert outcomes == {"peer-1": "finished", "peer-2": "finished", "peer-3": "killed", "peer-4": "joined"}
    live = [each for each in answer["peers"] if each["outcome"] != "killed"]
    assert {each["round"] for each in live} == {ROUNDS}
    last = answer["committed"][-1]
    assert (last["members"], last["contributors"]) == (3, 3)
    assert len({each["digest"] for each in live}) == 1
    files = [tmp_path / "out" / "peers" / each["peer"] / "state.safetensors" for each in live]
    assert len({hashlib.sha256(file.read_bytes()).digest() for file in files}) == 1
    assert answer["val_loss"] < 0.9 * answer["initial_val_loss"]
    assert answer["bytes_per_parameter_per_round"] > 0
    figures = validation_losses(tmp_path / "out" / "metrics.jsonl", "peer-1")
    assert min(figures) == 1
    assert figures[max(figures)] < figures[1], "it learns, and that is seen on the way"
    report = (tmp_path / "out" / "report.html").read_text()
    assert "peer-3 was killed with SIGKILL" in report
    assert "peer-4 joined the run" in report
    for phase in ("training", "reducing", "deciding", "applying"):
        assert f'class="bar {phase}"' in report
    assert (tmp_path / "out" / "loss.svg").exists()
    assert not left_behind(tmp_path)


def validation_losses(metrics: Path, peer: str) -> dict[int, float]:
    """What a peer has measured while it trained, by the round after which the state was that."""
    lines = map(json.loads, metrics.read_text().splitlines())
    rounds = [each for each in lines if each["kind"] == "round" and each["peer"] == peer]
    return {each["round"]: each["validation_loss"] for each in rounds if each["validation_loss"] is not None}


def left_behind(out: Path) -> list[str]:
    """Processes that mention the folder in environment or command line, or work in it, as forked ones do."""
    processes = [each for each in Path("/proc").iterdir() if each.name.isdigit()] if os.path.exists("/proc") else []
    return [each.name for each in processes if str(out).encode() in _words(each)]


def _words(process: Path) -> bytes:
    try:
        there = os.fsencode(os.readlink(process / "cwd"))
        return (process / "environ").read_bytes() + (process / "cmdline").read_bytes() + there
    except OSError:  # it ended meanwhile, or is not ours
        return b""

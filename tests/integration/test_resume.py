"""A run that was stopped and resumed gives what an unstopped one gives, bit for bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.node.checkpoint.scan import find

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
inner_steps = 1
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


def up(out: Path, *flags: str) -> dict[str, Any]:
    """Play; what it printed."""
    argv = [sys.executable, "-P", "-m", "shoal.node", "up", "--out", str(out), "--json", "--checkpoint-every", "2"]
    done = subprocess.run([*argv, *flags], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def checkpoints(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What each peer, by its key's name, has written after each round."""
    found = [each.about for each in find(out)]
    assert all(about is not None for about in found)
    return {(about.peer, about.round): about.model_dump() for about in found if about is not None}


def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "text.txt").write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    data = ("--rounds", "8", "--data", str(tmp_path / "text.txt"))
    fresh = ("--peers", "3", "--kill-at", "none", "--join-at", "none", "--manifest", str(tmp_path / "manifest.toml"))
    whole, later = tmp_path / "whole", tmp_path / "later"
    unstopped = up(whole, *fresh, *data)
    expected = checkpoints(whole)
    assert sorted({round for _, round in expected}) == [4, 6, 8]

    for found in find(whole):
        if found.about is not None and found.about.round > 4:  # as if it had been stopped after round 4
            shutil.rmtree(found.path)
    resumed = up(later, *data, "--resume", str(whole))

    assert resumed["resumed_from"] == 4
    assert [each["round"] for each in resumed["committed"]] == [5, 6, 7, 8]
    assert [each["attempt"] for each in (*unstopped["committed"], *resumed["committed"])] == [1] * 12
    assert [each["digest"] for each in resumed["committed"]] == [each["digest"] for each in unstopped["committed"][4:]]
    assert resumed["val_loss"] == unstopped["val_loss"]
    assert {each["digest"] for each in resumed["peers"]} == {each["digest"] for each in unstopped["peers"]}
    again = checkpoints(later)
    for place, about in again.items():
        for key in ("history", "root", "samples", "members", "inner_steps", "files"):
            assert about[key] == expected[place][key], (place, key)
    assert sorted({round for _, round in again}) == [6, 8]
    assert len({about["run"] for about in (*expected.values(), *again.values())}) == 2  # a new lineage

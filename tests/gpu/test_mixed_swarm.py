"""A swarm with a GPU and a CPU: members train on different devices and hold the same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from tests.integration.test_up import MANIFEST

PATIENCE = 240.0


def test_members_on_a_gpu_and_on_a_cpu_hold_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "text.txt").write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", "2", "--rounds", "4", "--kill-at", "none"]
    argv += ["--join-at", "none", "--device", "cuda", "--device", "cpu", "--manifest", str(tmp_path / "manifest.toml")]
    argv += ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert [each["contributors"] for each in answer["committed"]] == [2] * 4
    assert [each["device"].split(":")[0] for each in answer["peers"]] == ["cuda", "cpu"]
    files = [tmp_path / "out" / "peers" / peer / "state.safetensors" for peer in ("peer-1", "peer-2")]
    assert len({hashlib.sha256(file.read_bytes()).digest() for file in files}) == 1

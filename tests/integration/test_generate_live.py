"""`shoal generate RUN`, and `shoal serve RUN` of a node's own replica; names that mean nothing are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_serve import end, start
from tests.integration.test_serve_live import MANIFEST, two_nodes, words_of

REPLICAS = MANIFEST.replace("[method]", '[method]\nname = "gossip"')
ALONE = f"{MANIFEST}[rounds]\nstart_members = 2\nmin_members = 2\n"


def generate(home: Path, source: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.node", "generate", source, "Once", "--max-tokens", "5"]
    environ = os.environ | {"SHOAL_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, timeout=120)


@pytest.mark.slow
def test_a_nodes_own_replica_is_served(children: Children, tmp_path: Path) -> None:
    first, second = two_nodes(children, tmp_path, REPLICAS)
    process, server = start("living", home=second.home)
    try:
        about = server.about()
        assert about["source"].startswith("this node's replica of run living")
        until(lambda: server.about()["round"] >= about["round"] + 2, "two rounds", lambda: words_of(first, second))
        assert server.about()["version"] == server.about()["root"][:16] != about["version"]
    finally:
        assert end(process) == 0


@pytest.mark.slow
def test_a_run_at_rest_is_asked_on_the_terminal_and_a_strange_name_is_refused(
    children: Children, tmp_path: Path
) -> None:
    node = RealNode(tmp_path / "node").start(children)
    run = node.client.create_run(ALONE, True)["run"]
    until(lambda: node.row().get("phase"), "the run", node.words)
    for name in ("living", run[:8]):
        done = generate(node.home.root, name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip("\n"), "the initial state writes, too"
    strange = generate(node.home.root, "dead")
    assert strange.returncode == 1
    assert "this node is in no run 'dead'" in strange.stderr
    nobody = generate(tmp_path / "nobody", "living")
    assert nobody.returncode != 0
    assert "no node runs in" in nobody.stderr

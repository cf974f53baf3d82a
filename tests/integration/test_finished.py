"""A run whose last round is over looks so everywhere, keeps no worker, and gives its result to who comes late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from tests.integration.nodes import PATIENCE, RealNode, until
from tests.integration.test_node import MANIFEST

SHORT = MANIFEST.replace("min_members = 2", "min_members = 1\nstart_members = 1\nlast = 2")


def shoal(node: RealNode, *arguments: str) -> tuple[int, str]:
    environ = {**os.environ, "SHOAL_HOME": str(node.home.root)}
    argv = [sys.executable, "-P", "-m", "shoal.node", *arguments]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_finished_run(children: Children, tmp_path: Path) -> None:
    first, late = RealNode(tmp_path / "first"), RealNode(tmp_path / "late")
    for node in (first, late):
        node.prefix = ("env",)  # by itself, so that its worker is its child
    first.start(children)
    run = str(first.client.create_run(SHORT, True)["run"])

    def check() -> None:
        until(lambda: first.row().get("phase") == "finished" and not first.workers, "the end", first.words)
        row = first.row()
        idle = ("device", "worker_memory", "tokens_per_second", "utilisation", "micro_batch", "waiting_for")
        assert {key: row[key] for key in idle} == dict.fromkeys(idle)
        assert (row["round"], row["step"]) == (2, 0)
        assert first.client.run_details(run)["members"][0]["phase"] == "finished"
        code, said = shoal(first, "status", "--exit-code")
        assert code == Exit.OK
        assert "Finished tiny after round 2, and keeps the result." in said

    check()
    loss = first.row()["loss"]
    assert loss is not None
    assert first.row()["checkpoint"] == 2
    late.start(children, first.address)
    late.client.join_run(first.client.run_link(run)["link"], True)
    until(lambda: late.row().get("phase") == "finished", "the result", late.words)
    assert late.saved_state(run) == first.saved_state(run)
    until(lambda: not late.workers, "no worker", late.words)
    late.client.stop()
    first.client.stop()
    until(lambda: not first.is_running, "the stop", first.words)
    first.start(children)  # it is as it was, and does not wait for anybody
    check()

"""A node's own settings of the trainer, from its command line to the worker and back to its status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until

MANIFEST = """
name = "alone"
[model]
dim = 32
layers = 1
hidden = 64
context = 32
[method]
optimizer = "muon"
inner_steps = 20
batch = 4
[rounds]
min_members = 1
start_members = 1
"""


@pytest.mark.slow
def test_what_the_owner_asks_for_is_what_the_worker_does_and_the_status_says(
    children: Children, tmp_path: Path
) -> None:
    asked = TrainerOptions(micro_batch=3, recompute=True)
    node = RealNode(tmp_path / "node").start(children, device="cpu", trainer=asked)
    run = str(node.client.create_run(MANIFEST, True)["run"])
    log = node.home.run_folder(run) / "worker.log"

    def words() -> str:
        return f"{node.row()}\n{node.words()}\n{log.read_text() if log.exists() else 'no log of a worker'}"

    seen: list[tuple[int, float]] = []

    def is_shown() -> bool:
        row = node.row()
        if row.get("micro_batch") and row.get("model_flops_utilization"):
            seen.append((row["micro_batch"], row["model_flops_utilization"]))
        return bool(seen)

    until(is_shown, "the worker's first steps in the status", words)
    assert seen[0][0] == 3
    assert 0 < seen[0][1] < 1
    until(lambda: node.round() >= 2, "rounds of a run that trains with Muon", words)
    told = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert told == ["cpu trains on 4 sequences in micro-batches of 3, activations recomputed"]

"""Real nodes: with every codec that a manifest can name rounds commit, and both members hold the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.protocol.tensors.compression import CODECS
from tests.integration.nodes import RealNode, until

LAST = 2
MANIFEST = """
name = "codecs"
[model]
dim = 64
layers = 1
heads = 2
kv_heads = 1
hidden = 1024
context = 16
[method]
inner_steps = 2
batch = 2
[rounds]
last = {last}
chunk_bytes = 65536
[codec]
scatter = "{scatter}"
gather = "{gather}"
"""
MIXED = [("fp4", "int8"), ("fp16", "int8"), ("fp4", "bf16"), ("topk", "fp16")]


@pytest.mark.slow
@pytest.mark.parametrize(("scatter", "gather"), [*MIXED, *((name, name) for name in CODECS)])
def test_members_hold_the_same_bytes(children: Children, tmp_path: Path, scatter: str, gather: str) -> None:
    one = RealNode(tmp_path / "one").start(children)
    other = RealNode(tmp_path / "other").start(children, one.address)

    def words() -> str:
        return f"{one.row()}\n{one.words()}\n{other.row()}\n{other.words()}"

    until(lambda: other.client.peers(), "a connection", words)
    run = str(one.client.create_run(MANIFEST.format(last=LAST, scatter=scatter, gather=gather), True)["run"])
    other.client.join_run(run, True)
    until(lambda: min(one.round(), other.round()) >= LAST, "the last round", words)
    records = [next(each for each in node.client.rounds(run) if each["round"] == LAST) for node in (one, other)]
    assert {record["contributors"] for record in records} == {2}
    assert one.saved_state(run) == other.saved_state(run)

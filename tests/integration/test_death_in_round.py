"""Four real processes, a vector of 8 or (slow) 64 MiB, and one that dies or stops in the middle of its all-reduce.

The round it happens in is decided all the same; the survivors hold the same bytes; what each of them sends
a second time is at most its contribution to the victim's chunks.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, join_all, until, words_of

PEERS = 4
FAULT_ROUND = 4  # by then all four vote
MIB = 1 << 20
MANIFEST = """
name = "vector"
[model]
dim = {dim}
layers = 1
heads = 8
kv_heads = 8
hidden = {hidden}
context = 8
[method]
inner_steps = 1
batch = 1
outer_lr = 1.0
outer_momentum = 0.0
[rounds]
min_members = 2
start_members = 4
last = 5
max_group = {owners}
chunk_bytes = {chunk}
"""


@dataclass(frozen=True)
class Size:
    """A model whose parameters are a vector of so many bytes, cut in chunks of so many."""

    dim: int
    hidden: int
    vector: int
    chunk: int


SMALL = Size(dim=256, hidden=2304, vector=8 * MIB, chunk=MIB // 4)
LARGE = Size(dim=1024, hidden=3968, vector=64 * MIB, chunk=MIB)


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize(("kind", "role"), [("kill", "proposer"), ("stop", "owner")])
def test_the_round_of_a_death_commits(children: Children, tmp_path: Path, kind: str, role: str) -> None:
    strike(children, tmp_path, kind, role, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "role"), [("kill", "contributor"), ("kill", "owner"), ("kill", "proposer"), ("stop", "owner")]
)
def test_the_round_of_a_death_commits_a_large_vector(children: Children, tmp_path: Path, kind: str, role: str) -> None:
    strike(children, tmp_path, kind, role, LARGE)


def strike(children: Children, tmp_path: Path, kind: str, role: str, size: Size) -> None:
    """Let one of four be struck in a round, and look at the others."""
    fault = f"{kind} round={FAULT_ROUND} share=0.5 role={role}"
    owners = PEERS - 1 if role == "contributor" else PEERS
    nodes = swarm(children, tmp_path, fault, everybody=role != "owner")
    run = join_all(nodes, MANIFEST.format(owners=owners, dim=size.dim, hidden=size.hidden, chunk=size.chunk))
    words = partial(words_of, *nodes)
    until(lambda: any(is_struck(node) for node in nodes), "the fault to fire", words)
    struck_at = time.monotonic()
    victim = next(node for node in nodes if is_struck(node))
    survivors = [node for node in nodes if node is not victim]
    until(lambda: all(node.round() >= FAULT_ROUND for node in survivors), "the round to commit", words)
    took = time.monotonic() - struck_at
    records = [next(r for r in node.client.rounds(run) if r["round"] == FAULT_ROUND) for node in survivors]
    again = [record["resent"] / MIB for record in records]
    print(f"\n{fault}: committed {took:.2f} s after it; {records[0]}; sent again {again} MiB")
    assert {record["members"] for record in records} == {PEERS}
    assert records[0]["contributors"] in (PEERS - 1, PEERS)
    share = size.vector / owners + size.chunk
    assert all(record["resent"] <= share for record in records)
    if kind == "kill":
        events = [each for node in survivors for each in node.client.timeline(run, FAULT_ROUND)["events"]]
        alive = {node.client.status()["peer"] for node in survivors}
        assert {each["peer"] for each in events if each["what"] == "lost"} - alive, events
    until(lambda: all(node.round() > FAULT_ROUND for node in survivors), "the next round to commit", words)
    assert len({node.saved_state(run) for node in survivors}) == 1
    if victim.is_running:
        os.kill(victim.pid, signal.SIGCONT)  # so that it can be ended


def swarm(children: Children, folder: Path, fault: str, everybody: bool) -> list[RealNode]:
    """Four daemons. If `everybody` carries the fault, the only one with its role in that round is the victim."""
    first = RealNode(folder / "n0").start(children, fault=fault if everybody else "")
    nodes = [first]
    for index in range(1, PEERS):
        carries = everybody or index == 1
        nodes.append(RealNode(folder / f"n{index}").launch(children, first.address, fault if carries else ""))
    return [node.ready() for node in nodes]


def is_struck(node: RealNode) -> bool:
    return "fault fired" in node.words()

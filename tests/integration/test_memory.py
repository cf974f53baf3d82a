"""What a daemon holds in rounds is bounded, and does not grow with their number (Linux: /proc)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.node.base.malloc import ARENAS
from shoal.node.client.up.processes import Children
from tests.integration.leftovers import resident_bytes
from tests.integration.nodes import RealNode, until

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"
MANIFEST = """
name = "many-rounds"
[model]
dim = 128
layers = 1
heads = 2
kv_heads = 1
hidden = 256
context = 8
[method]
inner_steps = 1
batch = 1
[rounds]
start_members = 2
pace = "steps"
"""  # 0.7 MB for each vector: who keeps one of each round has 130 MB more after 200
WARM_UP, ROUNDS = 200, 200  # until then free memory is in pieces that fit, and what is kept of 64 rounds is full
LOOKED_AT = 50  # rounds, in which the least counts: what is free is given back after a checkpoint, and used again
MOST_GROWN = 4e6  # bytes: what is kept of a round takes 3 kB; a round that kept 20 kB would be seen
MIB, NODES = 128, 2
LIMIT = 3.0  # vectors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass(frozen=True)
class Held:
    """By a process."""

    memory: int
    files: int
    threads: int


def held(pid: int) -> Held:
    return Held(resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))


def arenas(pid: int) -> int:
    """How many arenas glibc has beside the first: each begins at a multiple of 64 MiB, and uses a part of these."""
    found, size = 0, 64 << 20
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    for (used, rights, *_), (rest, none, *_) in pairwise(maps):
        start, end = (int(each, 16) for each in used.split("-"))
        found += start % size == 0 and (rights, none) == ("rw-p", "---p") and rest == f"{end:x}-{start + size:x}"
    return found


def test_the_threads_of_a_daemon_share_an_arena(tmp_path: Path) -> None:
    with Children() as children:
        assert arenas(RealNode(tmp_path).start(children).pid) < ARENAS


@pytest.mark.slow
def test_two_hundred_rounds_leave_nothing_in_a_daemon(tmp_path: Path) -> None:
    with Children() as children:
        first = RealNode(tmp_path / "0").start(children, checkpoint_every=10)
        second = RealNode(tmp_path / "1").start(children, first.address, checkpoint_every=10)
        run = first.client.create_run(MANIFEST, True)["run"]
        second.client.join_run(first.client.run_link(run)["link"], True)
        nodes = (first, second)

        def look_after(round: int) -> list[Held]:
            looks: list[list[Held]] = [[] for _ in nodes]

            def are_past(round: int) -> bool:
                for node, seen in zip(nodes, looks, strict=True):
                    seen.append(held(node.pid))
                return all(node.round() >= round for node in nodes)

            until(lambda: are_past(round), f"round {round}", first.words)
            for seen in looks:
                seen.clear()
            until(lambda: are_past(round + LOOKED_AT), f"round {round + LOOKED_AT}", first.words)
            return [min(seen, key=lambda look: look.memory) for seen in looks]

        before = look_after(WARM_UP)
        after = look_after(WARM_UP + ROUNDS)
    for old, new in zip(before, after, strict=True):
        print(f"\n{new.memory / 1e6:.0f} MB, {(new.memory - old.memory) / 1e6:+.1f}; {old} {new}")
        assert new.memory - old.memory < MOST_GROWN
        assert new.files <= old.files + 2  # a question of ours, or a file that is being written
        assert new.threads <= old.threads + 2  # of a pool that had not started them all


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every", [0, 2])
def test_a_daemon_in_a_round_holds_at_most_three_vectors_beside_what_it_keeps(checkpoint_every: int) -> None:
    words = ["--mib", str(MIB), "--nodes", str(NODES), "--checkpoint-every", str(checkpoint_every), "--json"]
    done = subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=600)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["daemons"]) == NODES
    for each in answer["daemons"]:
        print(each)
        assert each["vector"] >= MIB << 20
        assert 0 < each["beside"] <= LIMIT
    assert (done.returncode, answer["ok"]) == (0, True)

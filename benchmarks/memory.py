"""What a daemon holds in the rounds of a large model: at most 3 times the vector, beside what it has to keep.

    python benchmarks/memory.py [--mib 256] [--nodes 3] [--rounds 4] [--checkpoint-every 0] [--json]

Real nodes with the built-in workers, over loopback, one step a round, codec fp32. For each daemon, in MiB:

    idle        resident in a run of next to no parameters
    committed   the state: two versions, each of parameters and outer momentum; with checkpoints three, as the one that
                is being written is leased
    kept        the means of the last round, without which voters that were stopped could not go on
    peak        the most that was ever resident in `--rounds` rounds, after the first ones
    beside      peak - idle - committed - kept; the limit is on this, divided by the vector

`own` and `shared` are of the fullest moment that was seen (20 looks a second; `peak` misses none): shared with the
worker are parameters and contribution, of which all is counted here. Linux: /proc. Exit 1 if the limit is missed.
256 MiB and three nodes take 15 GiB and three minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from kit.node import Node

from shoal.node.manifest.manifest import parse_manifest
from shoal.node.manifest.requirements import parameters

LIMIT = 3.0
MIB = 1 << 20
EVERY = 0.05  # seconds between two looks
FORGET_PEAK = "5"  # what clear_refs takes for it
DIM = 128
IDLE_ROUNDS, WARM_UP = 3, 3
VERSIONS, VECTORS = 2, 2  # of the state, where nobody leases one; in each
LOOK = 0.5  # seconds between two questions how far the nodes are: each costs processor time
PATIENCE = 600.0  # seconds for one round, of a busy machine
MANIFEST = """
name = "{name}"
[model]
vocab = {vocab}
dim = {dim}
layers = 1
heads = 4
kv_heads = 4
hidden = 8
context = 8
[method]
inner_steps = 1
batch = 1
[rounds]
start_members = {nodes}
pace = "steps"
last = {last}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of one daemon, in bytes; `beside` is in vectors."""

    vector: int
    idle: int
    committed: int
    kept: int
    peak: int
    own: int
    shared: int
    beside: float


def main() -> int:
    """Measure; 0 if all daemons keep the limit."""
    options = _parse()
    results = measure(options.mib, options.nodes, options.rounds, options.checkpoint_every)
    ok = all(result.beside <= LIMIT for result in results)
    if options.json:
        print(json.dumps({"daemons": [asdict(result) for result in results], "ok": ok}))
    else:
        print("\n".join(_table(results)))
        print(f"limit {LIMIT:g} vectors of {results[0].vector / MIB:.0f} MiB: {'kept' if ok else 'MISSED'}")
    return 0 if ok else 1


def measure(mib: int, count: int, rounds: int, checkpoint_every: int) -> list[Result]:
    """One result for each daemon."""
    with tempfile.TemporaryDirectory(prefix="shoal-memory-") as folder, ExitStack() as stack:
        nodes = _start(stack, count, checkpoint_every)
        pids = [node.process.pid for node in nodes]
        _found(nodes, _manifest(Path(folder), "idle", 1, count, IDLE_ROUNDS))
        _await_round(nodes, "idle", IDLE_ROUNDS)
        idle = [look(pid) for pid in pids]
        for node in nodes:
            node.ask("run", "leave", "idle")
        manifest = _manifest(Path(folder), "large", mib, count, WARM_UP + rounds)
        _found(nodes, manifest)
        _await_round(nodes, "large", WARM_UP)
        with Watch(pids) as watch:
            _await_round(nodes, "large", WARM_UP + rounds)
        vector = 4 * parameters(parse_manifest(manifest.read_text(encoding="utf-8")).model)
        committed = (VERSIONS + bool(checkpoint_every)) * VECTORS * vector
        peaks = [look(pid).peak for pid in pids]
        return list(map(partial(_result, vector, committed), idle, peaks, watch.fullest.values()))


def _start(stack: ExitStack, count: int, checkpoint_every: int) -> list[Node]:
    here = {"SHOAL_LISTEN_HOST": "127.0.0.1", "SHOAL_CHECKPOINT_EVERY": str(checkpoint_every), "SHOAL_DEVICE": "cpu"}
    nodes = [stack.enter_context(Node(**here))]
    near = {**here, "SHOAL_BOOTSTRAP": nodes[0].ask("status")["addresses"][0]}
    return nodes + [stack.enter_context(Node(**near)) for _ in range(count - 1)]


def _manifest(folder: Path, name: str, mib: int, nodes: int, last: int) -> Path:
    """The manifest of a model that is almost only an embedding of so many MiB, so that a step is quick."""
    path = folder / f"{name}.toml"
    vocab = mib * MIB // 4 // DIM
    path.write_text(MANIFEST.format(name=name, vocab=vocab, dim=DIM, nodes=nodes, last=last), encoding="utf-8")
    return path


def _found(nodes: Sequence[Node], manifest: Path) -> None:
    link = nodes[0].ask("run", "create", str(manifest))["link"]
    for node in nodes[1:]:
        node.ask("run", "join", link, "--yes")


def _await_round(nodes: Sequence[Node], name: str, round: int) -> None:
    deadline = time.monotonic() + PATIENCE * round
    while any(node.round_of(name) < round for node in nodes):
        if time.monotonic() > deadline:
            raise SystemExit(f"round {round} of {name} does not come: try `shoal status`")
        time.sleep(LOOK)


def _result(vector: int, committed: int, idle: Memory, peak: int, fullest: Memory) -> Result:
    kept = vector
    beside = (peak - idle.resident - committed - kept) / vector
    return Result(vector, idle.resident, committed, kept, peak, fullest.own, fullest.shared, round(beside, 2))


def _table(results: Sequence[Result]) -> list[str]:
    columns = ("idle", "committed", "kept", "peak", "own", "shared")
    rows = [[str(getattr(result, column) // MIB) for column in columns] for result in results]
    lines = [["daemon", *columns, "beside / vector"]]
    lines += [[str(n), *row, f"{result.beside:.2f}"] for n, (row, result) in enumerate(zip(rows, results, strict=True))]
    return ["".join(f"{word:>10}" for word in line[:-1]) + f"{line[-1]:>18}" for line in lines]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the memory of daemons in rounds of a large model.")
    parser.add_argument("--mib", type=int, default=256, help="MiB of fp32 parameters")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="rounds; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.nodes < 2 or not 1 <= options.mib <= 480 or options.rounds < 1 or options.checkpoint_every < 0:
        parser.error("--nodes must be at least 2, --mib 1 to 480, --rounds at least 1")
    return options


# -- the memory of a process, as Linux counts it (proc(5)) -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: in all, anonymous, of files (programs) and shared; and the highest total so far."""

    resident: int
    own: int
    files: int
    shared: int
    peak: int


def look(pid: int) -> Memory:
    """The memory of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {name: int(words.split()[0]) for name, _, words in (line.partition(":") for line in lines) if " kB" in words}
    fields = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM")
    return Memory(*(kib[name] << 10 for name in fields))


def forget_peak(pid: int) -> None:
    """Resets `peak` to the present size."""
    Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)


class Watch:
    """Samples processes until the end of the `with` block, and keeps each one's largest sample."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fullest: dict[int, Memory] = {}

    def __enter__(self) -> Watch:
        for pid in self._pids:
            forget_peak(pid)
            self.fullest[pid] = look(pid)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(EVERY):
            for pid in self._pids:
                now = look(pid)
                if now.resident > self.fullest[pid].resident:
                    self.fullest[pid] = now


if __name__ == "__main__":
    sys.exit(main())

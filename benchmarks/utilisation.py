"""How much of its time a worker trains, method by method: real daemons between homes, over lines of 50 Mbit/s.

    sudo .venv/bin/python benchmarks/utilisation.py --only diloco,streaming-diloco

Four nodes, each behind a line of its own (docs/netlab.md), train one run after the other. `utilisation` is steps per
second in its rounds over those of the same worker while nothing is exchanged, as the slowest member has it; the first
rounds, in which no node knows its line, do not count. `own_words` is what the workers report (`shoal status`).
A step takes as long as on a device that needs no core of ours (kit/paced_worker.py), chosen so that DiLoCo's exchange
takes a fifth of a round. A round that a member passed over, or passed without exchanging, counts with the steps that it
made for it; `took_part` says in how many the member was that had the fewest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the laboratory, which is the tests'

from shoal.node.api.client import Client
from shoal.node.client.up.processes import Children
from tests.netlab.lab import Lab, network, what_is_missing
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode

LINE = Link(delay=0.025, rate=50e6)
NODES = 4
STEP = 0.15  # seconds
H = 20  # inner steps between two exchanges of the same numbers
CONTEXT = 128  # tokens of a step, in batches of one
PATIENCE = 300.0  # seconds, of a busy machine
WORKER = Path(__file__).parent / "kit" / "paced_worker.py"
PACED = (  # code that a node runs first, so that its workers are paced ones
    f"import os; os.environ['SHOAL_STEP'] = '{STEP}'; import shoal.node.run.settings as settings; "
    f"settings.BUILT_IN = ('{sys.executable}', '{WORKER}')"
)
WARM, CYCLES = 3, 5  # times H steps: before it counts, and while it does
OFF = "no exchange"
METHODS: dict[str, dict[str, Any]] = {  # settings beside those that suit a method by themselves
    OFF: {"name": "diloco", "inner_steps": 100_000},
    "diloco": {"name": "diloco", "inner_steps": H},
    "diloco-delayed": {"name": "diloco-delayed", "inner_steps": H},
    "diloco-eager": {"name": "diloco-eager", "inner_steps": H},
    "co2": {"name": "co2", "inner_steps": H},
    "streaming-diloco": {"name": "streaming-diloco", "inner_steps": H, "strides": 2, "delay": 5},
    "sparseloco": {"name": "sparseloco", "inner_steps": H},
    "ddp": {"name": "ddp"},
    "noloco": {"name": "noloco", "inner_steps": H},
    "gossip": {"name": "gossip", "inner_steps": H},
}
MANIFEST = """
name = "{label}"
[model]
layers = 2
context = {context}
[method]
batch = 1
{method}
[rounds]
start_members = {members}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    method: str
    rounds: int
    took_part: int  # in so many of them, by the member that did least
    steps_per_second: float  # of the slowest member
    utilisation: float
    own_words: float  # the least that a worker says


def main() -> int:
    """Measure each method in turn."""
    options = _parse()
    if missing := what_is_missing():
        print(f"there can be no laboratory here: {missing}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="shoal-utilisation-") as folder, network() as lab, Children() as children:
        nodes = start(lab, children, Path(folder))
        alone = speed_without(nodes)
        print(f"{OFF}: {alone:.3f} steps per second", file=sys.stderr, flush=True)
        for name in options.only:
            result = measure(nodes, name, alone)
            print(json.dumps(asdict(result)) if options.json else _words(result), flush=True)
    return 0


def start(lab: Lab, children: Children, folder: Path) -> list[LabNode]:
    """Starts nodes that know each other, with paced workers."""
    nodes = [LabNode(lab.internet.host(f"peer{n}", link=LINE), folder / f"{n}") for n in range(NODES)]
    for node in nodes:
        node.before = PACED
        node.start(children, bootstrap=() if node is nodes[0] else (nodes[0].door,))
        until(node.status, "a node")
    return nodes


def speed_without(nodes: list[LabNode]) -> float:
    """Steps per second of the slowest worker while nothing is exchanged."""
    begin(nodes, OFF)
    until(lambda: all(step_of(node) > H for node in nodes), "steps")
    before, at = [step_of(node) for node in nodes], time.monotonic()
    until(lambda: all(step_of(node) >= first + 5 * H for node, first in zip(nodes, before, strict=True)), "steps")
    made = [step_of(node) - first for node, first in zip(nodes, before, strict=True)]
    speed = min(made) / (time.monotonic() - at)
    leave(nodes)
    if speed * STEP > 1:
        raise SystemExit(f"{speed:.1f} steps per second are more than one in {STEP} s: the workers are not paced")
    return speed


def measure(nodes: list[LabNode], name: str, alone: float) -> Result:
    """Measures some rounds of one method."""
    begin(nodes, name)
    per_cycle = {"ddp": H, "streaming-diloco": 3}.get(name, 1)  # rounds in H steps
    first, last = WARM * per_cycle, (WARM + CYCLES) * per_cycle
    until(lambda: all(row_of(node).get("round", 0) >= last for node in nodes), f"round {last} of {name}")
    seen = [rounds_of(node) for node in nodes]
    own = [float(row_of(node)["utilisation"]) for node in nodes]
    leave(nodes)
    speed = min(pace(rows, first, last) for rows in seen)
    took_part = min(sum(row["took_part"] for row in between(rows, first, last)[1:]) for rows in seen)
    return Result(name, last - first, took_part, round(speed, 3), round(speed / alone, 3), round(min(own), 3))


def begin(nodes: list[LabNode], name: str) -> None:
    """Starts a run of all nodes."""
    method = "\n".join(f"{key} = {json.dumps(value)}" for key, value in METHODS[name].items())
    manifest = MANIFEST.format(label=name.replace(" ", "-"), context=CONTEXT, method=method, members=len(nodes))
    made = nodes[0].ask(lambda client: client.create_run(manifest, True))
    for node in nodes[1:]:
        node.ask(lambda client: client.join_run(made["link"], True))


def leave(nodes: list[LabNode]) -> None:
    """Leaves the only run, on all nodes."""
    for node in nodes:
        run = str(row_of(node)["run"])
        node.ask(partial(_leave, run))
    until(lambda: all(not row_of(node) for node in nodes), "the end of a run")


def _leave(run: str, client: Client) -> None:
    client.leave_run(run)


def rounds_of(node: LabNode) -> list[dict[str, Any]]:
    """The rounds of the node's only run, as it has seen them, oldest first."""
    run, rows = str(row_of(node)["run"]), list[dict[str, Any]]()

    def has_any() -> bool:
        rows[:] = node.ask(lambda client: client.rounds(run)) or ()
        return bool(rows)

    until(has_any, "round")
    return rows


def pace(rows: list[dict[str, Any]], first: int, last: int) -> float:
    """Steps per second between a member's contributions to the rounds `first` and `last`, or the nearest in between.

    A member has no row of a round that it skipped. The time of a row's steps is when its contribution was ready, not
    when the exchange was over: with a delay, training goes on during exchanges.
    """
    counted = between(rows, first, last)
    if len(counted) < 2:
        raise SystemExit(f"a member has seen fewer than two of the rounds {first} to {last}: it was not there")
    steps = sum(int(row["tokens"]) for row in counted[1:]) / CONTEXT
    return steps / (_ready(counted[-1]) - _ready(counted[0]))


def _ready(row: dict[str, Any]) -> float:
    return float(row["applied_at"]) - float(row["seconds"])


def between(rows: list[dict[str, Any]], first: int, last: int) -> list[dict[str, Any]]:
    """The rows of the rounds `first` to `last`."""
    return [row for row in rows if first <= int(row["round"]) <= last]


def row_of(node: LabNode) -> dict[str, Any]:
    """The row of a node's only run; empty if there is none."""
    return next(iter(node.status().get("runs") or ()), {})


def step_of(node: LabNode) -> int:
    return int(row_of(node).get("step") or 0)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for `condition`, with a deadline."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"there was no {what} within {PATIENCE:.0f} s")
        time.sleep(0.1)


def _words(result: Result) -> str:
    return (
        f"{result.method:18} {result.utilisation:6.1%} of its time, {result.steps_per_second:.3f} steps per second in "
        f"{result.rounds} rounds, each member in {result.took_part} or more of them; in its own words "
        f"{result.own_words:.1%}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name in METHODS if name != OFF]
    parser.add_argument("--only", type=lambda text: text.split(","), default=known, help="methods, with commas between")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    options = parser.parse_args()
    if unknown := set(options.only) - set(known):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    return options


if __name__ == "__main__":
    sys.exit(main())

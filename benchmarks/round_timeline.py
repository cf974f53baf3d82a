"""Draw rounds as they really were: four nodes on this machine, `shoal logs --round R --json` of each, one picture.

    python benchmarks/round_timeline.py                 a round in which nothing happens, and one in which a member dies
    python benchmarks/round_timeline.py --draw FILE     only draw a picture again, from docs/rounds.json, say

Each node is started and asked as a user would, with a model of 8 million parameters. In round 3 one of them is killed
by SIGKILL, in the middle of its all-reduce (SHOAL_FAULT, see node/faults.py). The pictures go to docs/round.svg and
docs/round-death.svg, what they are drawn from beside them as .json, and what one of them prints to standard output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit.node import Node
from kit.round_picture import draw

DOCS = Path(__file__).parent.parent / "docs"
PEERS, CALM, DEADLY = 4, 2, 3  # rounds; the first one warms up
PATIENCE = 300.0  # seconds
MANIFEST = """
name = "picture"
[model]
dim = 320
layers = 4
heads = 8
kv_heads = 4
hidden = 1280
context = 32
[method]
inner_steps = 4
batch = 1
outer_lr = 1.0
outer_momentum = 0.0
[rounds]
min_members = 2
start_members = 4
last = 3
"""

Answer = dict[str, Any]


def main() -> None:
    """Play, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, help="a .json file of an earlier play; nothing is started")
    chosen = parser.parse_args().draw
    if chosen is not None:
        return _draw(chosen)
    with tempfile.TemporaryDirectory(prefix="shoal-round-") as folder, ExitStack() as stack:
        manifest = Path(folder) / "run.toml"
        manifest.write_text(MANIFEST, encoding="utf-8")
        for number, path in play(manifest, stack).items():
            _draw(path)
            print(f"round {number}: {path.with_suffix('.svg')}")


def play(manifest: Path, stack: ExitStack) -> dict[int, Path]:
    """Let four nodes commit three rounds, in the last of which one dies; the files with both timelines, by round."""
    here = {"SHOAL_LISTEN_HOST": "127.0.0.1"}
    nodes = [stack.enter_context(Node(**here))]
    near = {**here, "SHOAL_BOOTSTRAP": _ask(nodes[0], "status")["addresses"][0]}
    fault = f"kill round={DEADLY} share=0.5 role=owner"
    nodes.append(stack.enter_context(Node(**near, SHOAL_FAULT=fault)))
    nodes += [stack.enter_context(Node(**near)) for _ in range(PEERS - 2)]
    link = _ask(nodes[0], "run", "create", str(manifest))["link"]
    for node in nodes[1:]:
        _ask(node, "run", "join", link, "--yes")
    paths = {}
    for number, name in ((CALM, "round"), (DEADLY, "round-death")):
        living = [node for node in nodes if number == CALM or node is not nodes[1]]
        _until(lambda living=living, number=number: all(_round(node) >= number for node in living))  # type: ignore[misc]
        timelines = [_ask(node, "logs", "--round", str(number)) for node in living]
        paths[number] = DOCS / f"{name}.json"
        paths[number].write_text(json.dumps(timelines, indent=1) + "\n", encoding="utf-8")
        print(nodes[-1].run("logs", "--round", str(number)).stdout.decode())
    return paths


def _draw(path: Path) -> None:
    path.with_suffix(".svg").write_text(draw(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


def _round(node: Node) -> int:
    return max((run["round"] for run in _ask(node, "status")["runs"]), default=0)


def _ask(node: Node, *words: str) -> Any:
    """The answer of a command, as JSON."""
    done: subprocess.CompletedProcess[bytes] = node.run(*words, "--json")
    if done.returncode:
        raise SystemExit(f"shoal {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the rounds took longer than {PATIENCE:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()

"""Draw recorded rounds: four nodes on this machine, `shoal logs --round R --json` of each, one picture.

    python benchmarks/round_timeline.py                 a round in which nothing happens, and one in which a member dies
    python benchmarks/round_timeline.py --draw FILE     only draw a picture again, from docs/round.json, say

Each node is started and asked as a user would, with a model of 8 million parameters. In round 3 one of them is killed
by SIGKILL, in the middle of its all-reduce (SHOAL_FAULT, see node/base/fault_injection.py). The pictures go to
docs/round.svg and docs/round-death.svg, what they are drawn from beside them as .json, and what one of them prints to
standard output.
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
PEERS, VICTIM = 4, 1
CALM, DEADLY = 2, 3  # the last rounds of two runs; those before warm up
PATIENCE = 600.0  # seconds, of a busy machine
MANIFEST = """
name = "{name}"
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
last = {last}
"""


def main() -> None:
    """Play, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, help="a .json file of an earlier play; nothing is started")
    chosen = parser.parse_args().draw
    if chosen is not None:
        return _draw(chosen)
    with tempfile.TemporaryDirectory(prefix="shoal-round-") as folder, ExitStack() as stack:
        nodes = start(stack)
        for name, last in (("round", CALM), ("round-death", DEADLY)):
            manifest = Path(folder) / f"{name}.toml"
            manifest.write_text(MANIFEST.format(name=name, last=last), encoding="utf-8")
            _draw(play(nodes, manifest, name, last))


def start(stack: ExitStack) -> list[Node]:
    """The nodes, of which one carries its fault."""
    here = {"SHOAL_LISTEN_HOST": "127.0.0.1"}
    nodes = [stack.enter_context(Node(**here))]
    near = {**here, "SHOAL_BOOTSTRAP": _ask(nodes[0], "status")["addresses"][0]}
    fault = {"SHOAL_FAULT": f"kill round={DEADLY} share=0.5 role=owner"}
    return nodes + [stack.enter_context(Node(**near, **(fault if n == VICTIM else {}))) for n in range(1, PEERS)]


def play(nodes: list[Node], manifest: Path, name: str, last: int) -> Path:
    """Let the nodes do a run's rounds; the file with what those who live tell of the last one."""
    link = _ask(nodes[0], "run", "create", str(manifest))["link"]
    for node in nodes[1:]:
        _ask(node, "run", "join", link, "--yes")
    living = nodes if last < DEADLY else [node for node in nodes if node is not nodes[VICTIM]]
    _until(lambda: all(_round(node, name) >= last for node in living))
    words = ["logs", "--round", str(last), "--run", name]
    path = DOCS / f"{name}.json"
    path.write_text(json.dumps([_ask(node, *words) for node in living], indent=1) + "\n", encoding="utf-8")
    print(nodes[-1].run(*words).stdout.decode())
    for node in living:
        _ask(node, "run", "leave", name)
    return path


def _draw(path: Path) -> None:
    path.with_suffix(".svg").write_text(draw(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


def _round(node: Node, name: str) -> int:
    return max(int(run["round"]) for run in _ask(node, "status")["runs"] if run["name"] == name)


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

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
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from xml.etree.ElementTree import tostring

from kit.node import Node

from shoal.node.api.answers import Answer
from shoal.node.client.cli.round_lines import name as member_name
from shoal.node.client.report.markup import tag
from shoal.node.client.report.plot import Axis, Plot

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
    near = {**here, "SHOAL_BOOTSTRAP": nodes[0].ask("status")["addresses"][0]}
    fault = {"SHOAL_FAULT": f"kill round={DEADLY} share=0.5 role=owner"}
    return nodes + [stack.enter_context(Node(**near, **(fault if n == VICTIM else {}))) for n in range(1, PEERS)]


def play(nodes: list[Node], manifest: Path, name: str, last: int) -> Path:
    """Let the nodes do a run's rounds; the file with what those who live tell of the last one."""
    link = nodes[0].ask("run", "create", str(manifest))["link"]
    for node in nodes[1:]:
        node.ask("run", "join", link, "--yes")
    living = nodes if last < DEADLY else [node for node in nodes if node is not nodes[VICTIM]]
    _until(lambda: all(node.round_of(name) >= last for node in living))
    words = ["logs", "--round", str(last), "--run", name]
    path = DOCS / f"{name}.json"
    path.write_text(json.dumps([node.ask(*words) for node in living], indent=1) + "\n", encoding="utf-8")
    print(nodes[-1].run(*words).stdout.decode())
    for node in living:
        node.ask("run", "leave", name)
    return path


def _draw(path: Path) -> None:
    path.with_suffix(".svg").write_text(draw(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the rounds took longer than {PATIENCE:.0f} s")
        time.sleep(0.1)


# -- the picture ----------------------------------------------------------------------------------------------------


FLOWS = {  # labels by kind and way
    ("contribution", "sent"): "contributions sent",
    ("contribution", "received"): "contributions received",
    ("mean", "received"): "means received",
    ("mean", "sent"): "means sent",
}
PHASES = ("training", "matching", "reducing", "deciding", "applying")
PHASE, FLOW, PITCH, GAP = 15, 5, 8, 22  # heights
ROW = PHASE + 4 + PITCH * len(FLOWS) + GAP
HEAD, LEGEND = 42, 44
BEFORE = 0.06  # of the round's length, shown before the first member was ready
STYLE = """
svg { font: 12px system-ui, sans-serif; --ink: #222; --quiet: #666; --grid: #ddd; --paper: #fff; }
.paper { fill: var(--paper); } text { fill: var(--ink); } .tick, .axis, .fact { fill: var(--quiet); }
.grid { stroke: var(--grid); } .base { stroke: var(--quiet); }
.training { fill: #9aa5b1; } .matching { fill: #7b61a8; } .reducing { fill: #2f7fc1; }
.deciding { fill: #d08a1d; } .applying { fill: #3c9a5f; }
.contribution { fill: #0f8b8d; } .mean { fill: #c2587c; } .received { fill-opacity: 0.55; }
.mark { stroke: #c0392b; stroke-width: 1.5; } .mark-text { fill: #c0392b; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e6e6; --quiet: #a0a0a0; --grid: #3a3f45; --paper: #16191d; }
  .training { fill: #5d6874; } .matching { fill: #a48bd0; } .reducing { fill: #5aa7e6; }
  .deciding { fill: #e0a64a; } .applying { fill: #5fbf85; } .contribution { fill: #4cc9c0; } .mean { fill: #e483a5; }
  .mark { stroke: #ff7b6b; } .mark-text { fill: #ff7b6b; }
}
"""


def draw(timelines: list[Answer]) -> str:
    """The SVG of one round, as each of these members saw it."""
    begin = min(each["ready_at"] for each in timelines)
    end = max(each["ready_at"] + each["ended"] for each in timelines) - begin
    height = ROW * len(timelines)
    title = f"A round of {timelines[0]['size']} members, seen by {len(timelines)}"
    x = Axis(-BEFORE * end, 1.02 * end, "seconds since the first member was ready")
    plot = Plot(x, Axis(height, 0, ""), title, height=height + HEAD + 44 + LEGEND, left=150, top=HEAD)
    plot.bottom -= LEGEND
    plot.root.set("xmlns", "http://www.w3.org/2000/svg")
    plot.root.insert(0, tag("style", STYLE))
    plot.draw("rect", "paper", width="100%", height="100%")
    for value in x.ticks(10):
        plot.draw("line", "grid", x1=plot.at_x(value), x2=plot.at_x(value), y1=plot.top, y2=plot.bottom)
    plot.axes(rows=True)
    for row, timeline in enumerate(timelines):
        _member(plot, ROW * row, timeline, timeline["ready_at"] - begin)
    plot.marks(_death(timelines, begin))
    _legend(plot)
    return tostring(plot.root, encoding="unicode") + "\n"


def _member(plot: Plot, top: float, timeline: Answer, ready: float) -> None:
    proposes = timeline["proposer"] == timeline["peer"]
    owned = timeline["owners"].get(timeline["peer"], 0)
    y = plot.at_y(top) + 12
    plot.text(plot.left - 10, y, member_name(timeline["peer"]) + (", proposes" if proposes else ""), "end", "name")
    plot.text(plot.left - 10, y + 17, f"makes {owned} of {timeline['chunks']} means", "end", "fact")
    for span in timeline["phases"]:
        start, stop = max(span["from"] + ready, plot.x.low), min(span["to"] + ready, plot.x.high)
        if stop > start:
            words = f"{span['phase']}: {span['to'] - span['from']:.3f} s"
            plot.bar((start, stop), (top + PHASE, top), span["phase"], words)
    for place, ((kind, way), words) in enumerate(FLOWS.items()):
        flows = [each for each in timeline["traffic"] if (each["kind"], each["way"]) == (kind, way)]
        if flows:
            first, last = min(each["first"] for each in flows), max(each["last"] for each in flows)
            low = top + PHASE + 4 + PITCH * place
            count = sum(each["count"] for each in flows)
            stop = min(last + ready, plot.x.high)
            plot.bar((first + ready, stop), (low + FLOW, low), f"{kind} {way}", f"{count} {words}")


def _death(timelines: list[Answer], begin: float) -> list[tuple[float, str, str]]:
    """Marks at a member's last sign of life and where the first other gave it up; none if all have lived."""
    lost = [(each, event) for each in timelines for event in each["events"] if event["what"] == "lost"]
    if not lost:
        return []
    given_up, victim = min((each["ready_at"] - begin + event["at"], event["peer"]) for each, event in lost)
    heard = [
        each["ready_at"] - begin + flow["last"]
        for each in timelines
        for flow in each["traffic"]
        if (flow["peer"], flow["way"]) == (victim, "received")
    ]
    return [(max(heard), f"the last of {member_name(victim)}", "kill"), (given_up, "it is given up", "kill")]


def _legend(plot: Plot) -> None:
    keys = [*((each, each) for each in PHASES), *((f"{kind} {way}", words) for (kind, way), words in FLOWS.items())]
    x, y = float(plot.left), plot.bottom + 58.0
    for number, (css, words) in enumerate(keys):
        if number == len(PHASES):
            x, y = float(plot.left), y + 19
        size = PHASE - 4 if number < len(PHASES) else FLOW
        plot.draw("rect", css, x=x, y=y - size / 2 - 4, width=14, height=size)
        plot.text(x + 19, y, words, "start", "key")
        x += 36 + 6.4 * len(words)


if __name__ == "__main__":
    main()

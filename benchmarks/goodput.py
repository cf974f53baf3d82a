"""How much of its training a run keeps while one of its nodes is killed again and again: real daemons.

    python benchmarks/goodput.py --peers 5 --every 15,60                      some fifty minutes on two cores
    python benchmarks/goodput.py --every 15 --seconds 60 --turns 2 --json
    python benchmarks/goodput.py --peers 5 --every 15,60 --against hivemind   as long again, where hivemind is installed

One run is founded, and windows take turns in it:

- calm: nobody is struck.
- kills: every so many seconds the next node is killed with SIGKILL, daemon and worker, and started again at once.
- limit: in the same rhythm nobody is killed, and beside the nodes there are processes that only import what a daemon
  and a worker import, and load a node's state. So this is a restart of which nothing is left but that, and in which
  the node goes on meanwhile.

A window's goodput is the tokens behind the run's rounds a second, from the last round before it to the last one in it.
Printed are the medians of all turns, and the longest time without a round. The goals are 0.9 of the limit with a kill
every 15 s, and 0.97 with one every 60 s. 0 if they are reached.

With --against, processes that train the same model with hivemind then play calm and kills, with the same measure: there
a round is an epoch (goodput_hivemind.py, which says with which settings). A restart that does nothing but import is
not played with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kit.daemons import Daemon, TooLate, until
from kit.fleet import has_hivemind
from kit.hivemind_swarm import HivemindSwarm
from kit.swarm import PATIENCE, Round, Swarm, Window
from kit.training import Training

from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import ShoalError

GOALS = {15.0: 0.9, 60.0: 0.97}  # of the limit, by seconds between two kills
MANIFEST = """
name = "goodput"
[model]
dim = {dim}
layers = {layers}
heads = {heads}
kv_heads = {heads}
hidden = {hidden}
context = {context}
vocab = {vocab}
[method]
inner_steps = {inner_steps}
batch = {batch}
[rounds]
min_members = 2
start_members = {peers}
"""
LOADERS = (  # what a daemon and its worker import before they do anything; the first one loads the state, too
    """
import sys
from pathlib import Path
import shoal.node.daemon.daemon
from shoal.node.run.saving import newest_state
from shoal.protocol.base.ids import RunId
found = newest_state(Path(sys.argv[1]), RunId(bytes.fromhex(sys.argv[2])))
found and found.committed()
""",
    "import shoal.node.worker.worker, shoal.node.training.trainer.inner, shoal.node.training.models.decoder",
)


@dataclass(frozen=True, slots=True)
class Result:
    """All windows of one system with one rhythm of kills."""

    system: str
    every: float
    turns: int
    calm: float
    kills: float
    limit: float | None
    of_calm: float
    of_limit: float | None
    pause: float

    @property
    def is_good(self) -> bool:
        """Whether its goal is reached, if it has one."""
        return self.of_limit is None or self.of_limit >= GOALS.get(self.every, 0.0)


def main() -> int:
    """Play all rhythms in one run of each system."""
    options = _parse()
    if not options.json:
        print(f"{'':9} a kill every   calm  kills  limit tokens/s   of the limit   of calm   longest pause", flush=True)
    is_good = play("shoal", ShoalSwarm, options)
    if options.against == "hivemind" and has_hivemind():
        try:
            play("hivemind", HivemindSwarm, options)
        except TooLate as late:
            print(f"hivemind failed: {late}", file=sys.stderr)
    return 0 if is_good else 1


def play(system: str, found: Callable[[Children, Path, int], Swarm], options: argparse.Namespace) -> bool:
    """All rhythms in one run, which `found` founds; whether all results are good."""
    is_good = True
    with tempfile.TemporaryDirectory(prefix="shoal-goodput-") as folder, Children(grace=0.0) as children:
        swarm = found(children, Path(folder), options.peers)
        for every in options.every:
            result = measure(system, swarm, every, options.seconds or 4 * every, options.turns)
            print(json.dumps(asdict(result)) if options.json else _words(result), flush=True)
            is_good &= result.is_good
    return is_good


def measure(system: str, swarm: Swarm, every: float, seconds: float, turns: int) -> Result:
    """The windows in turns, each once all nodes take part again."""
    blows = swarm.blows()
    seen: dict[str, list[Window]] = {name: [] for name in blows}
    for _ in range(turns):
        for name, blow in blows.items():
            swarm.settle()
            seen[name].append(swarm.window(seconds, every, blow))
    goodput = {name: statistics.median(each.goodput for each in windows) for name, windows in seen.items()}
    limit = goodput.get("limit")
    return Result(
        *(system, every, turns),
        calm=round(goodput["calm"], 1),
        kills=round(goodput["kills"], 1),
        limit=None if limit is None else round(limit, 1),
        of_calm=round(goodput["kills"] / goodput["calm"], 3),
        of_limit=None if limit is None else round(goodput["kills"] / limit, 3),
        pause=round(max(each.pause for each in seen["kills"]), 2),
    )


class ShoalSwarm(Swarm):
    """Daemons, each with its worker."""

    def __init__(self, children: Children, folder: Path, peers: int) -> None:
        super().__init__(peers)
        self._nodes: list[Daemon] = []
        for number in range(peers):
            address = self._nodes[0].address if self._nodes else ""
            self._nodes.append(Daemon(children, folder / str(number), address, ""))
        founder = self._nodes[0]
        manifest = MANIFEST.format(peers=peers, **asdict(Training()))
        self._run = str(founder.client.create_run(manifest, True)["run"])
        for node in self._nodes[1:]:
            until(node.client.peers, "a connection", PATIENCE, node.words)
            node.client.join_run(self._run, True)
        self._loaders: list[subprocess.Popen[bytes]] = []

    def settle(self) -> None:
        """See Swarm."""
        until(lambda: len(self._rows(2)) == 2 and all(map(self._is_whole, self._rows(2))), "all to take part", PATIENCE)

    def last(self, count: int) -> Sequence[Round]:
        """See Swarm."""
        return [Round(row["round"], row["applied_at"], row["samples"]) for row in self._rows(count)]

    def kill(self, member: int) -> None:
        """See Swarm."""
        self._nodes[member].restart()

    def blows(self) -> Mapping[str, Callable[[], None]]:
        """See Swarm."""
        return {**super().blows(), "limit": lambda: self._load(self._nodes[self.advance()])}

    def window(self, seconds: float, every: float, blow: Callable[[], None]) -> Window:
        """See Swarm."""
        seen = super().window(seconds, every, blow)
        assert not any(each.wait(PATIENCE) for each in self._loaders), "what is to be loaded cannot be"
        self._loaders = []
        return seen

    def _load(self, node: Daemon) -> None:
        """What this node would import and load at a start is imported and loaded beside it."""
        words = (str(node.run_folder(self._run)), self._run)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._loaders += [subprocess.Popen([sys.executable, "-c", code, *words], env=environ) for code in LOADERS]

    def _is_whole(self, row: Answer) -> bool:
        return bool(row["contributors"] == self._size)

    def _rows(self, count: int) -> list[Answer]:
        """The last rounds, of the node that knows most of them."""
        known: list[list[Answer]] = [[]]
        for node in self._nodes:
            try:
                known.append([dict(row) for row in node.client.rounds(self._run, count)])
            except ShoalError:  # it is being started
                continue
        return max(known, key=lambda rows: (len(rows), rows[-1]["round"] if rows else 0))


def _words(result: Result) -> str:
    limit = "" if result.limit is None else f"{result.limit:.0f}"
    of_limit = "" if result.of_limit is None else f"{result.of_limit:.3f}"
    figures = f"{result.every:10.0f} s {result.calm:6.0f} {result.kills:6.0f} {limit:>6}"
    verdict = "" if result.is_good else f"   below its goal of {GOALS[result.every]:g}"
    return f"{result.system:9} {figures}{of_limit:>24} {result.of_calm:9.3f} {result.pause:13.2f} s{verdict}"


def _numbers(words: str) -> list[float]:
    return [float(word) for word in words.split(",")]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--every", type=_numbers, default=[15.0, 60.0], help="seconds between two kills, as 15,60")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a window; 0: four kills")
    parser.add_argument("--turns", type=int, default=3, help="windows of each kind")
    parser.add_argument("--against", choices=("hivemind",), help="measured, too, after Shoal")
    parser.add_argument("--json", action="store_true", help="one JSON line per system and rhythm")
    options = parser.parse_args()
    if options.peers < 3 or min(options.every) < 5 or options.turns < 1:
        parser.error("--peers must be at least 3, --every at least 5, --turns at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

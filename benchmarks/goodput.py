"""How much of its training a run keeps while one of its nodes is killed again and again: real daemons.

    benchmarks/goodput.py --peers 5 --every 15,60            about half an hour on two cores
    benchmarks/goodput.py --every 15 --seconds 60 --turns 2 --json

One run is founded, and windows take turns in it:

- calm: nobody is struck.
- kills: every so many seconds the next node is killed with SIGKILL, daemon and worker, and started again at once.
- limit: in the same rhythm nobody is killed, and beside the nodes there are processes that only import what a daemon
  and a worker import, and load a node's state. So this is a restart of which nothing is left but that, and in which
  the node goes on meanwhile.

A window's goodput is the tokens behind the run's rounds a second, from the last round before it to the last one in it.
Printed are the medians of all turns, and the longest time without a round. The goals are 0.9 of the limit with a kill
every 15 s, and 0.97 with one every 60 s. 0 if they are reached.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kit.daemons import Daemon, TooLate, until

from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import ShoalError

GOALS = {15.0: 0.9, 60.0: 0.97}  # of the limit, by seconds between two kills
PATIENCE = 180.0  # seconds, of a busy machine, until all take part
WINDOWS = ("calm", "kills", "limit")
MANIFEST = """
name = "goodput"
[model]
dim = 64
layers = 2
heads = 4
kv_heads = 4
hidden = 128
context = 64
[method]
inner_steps = 20
batch = 4
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
class Window:
    """What one window has shown."""

    goodput: float  # tokens a second
    pause: float  # seconds, the longest without a round


@dataclass(frozen=True, slots=True)
class Result:
    """All windows with one rhythm of kills."""

    every: float
    turns: int
    calm: float
    kills: float
    limit: float
    of_calm: float
    of_limit: float
    pause: float

    @property
    def is_good(self) -> bool:
        """Whether its goal is reached, if it has one."""
        return self.of_limit >= GOALS.get(self.every, 0.0)


def main() -> int:
    """Play all rhythms in one run."""
    options = _parse()
    is_good = True
    with tempfile.TemporaryDirectory(prefix="shoal-goodput-") as folder, Children(grace=0.0) as children:
        swarm = Swarm(children, Path(folder), options.peers)
        if not options.json:
            print("a kill every   calm  kills  limit tokens/s   of the limit   of calm   longest pause", flush=True)
        for every in options.every:
            result = measure(swarm, every, options.seconds or 4 * every, options.turns)
            print(json.dumps(asdict(result)) if options.json else _words(result), flush=True)
            is_good &= result.is_good
    return 0 if is_good else 1


def measure(swarm: Swarm, every: float, seconds: float, turns: int) -> Result:
    """The windows in turns, each once all nodes take part again."""
    seen: dict[str, list[Window]] = {name: [] for name in WINDOWS}
    blows: dict[str, Callable[[], None]] = {"calm": lambda: None, "kills": swarm.kill_next, "limit": swarm.load_next}
    for _ in range(turns):
        for name in WINDOWS:
            swarm.settle()
            seen[name].append(swarm.window(seconds, every, blows[name]))
    goodput = {name: statistics.median(each.goodput for each in seen[name]) for name in WINDOWS}
    return Result(
        every,
        turns,
        **{name: round(rate, 1) for name, rate in goodput.items()},
        of_calm=round(goodput["kills"] / goodput["calm"], 3),
        of_limit=round(goodput["kills"] / goodput["limit"], 3),
        pause=round(max(each.pause for each in seen["kills"]), 2),
    )


class Swarm:
    """One run and its nodes, of which one after the other is struck."""

    def __init__(self, children: Children, folder: Path, peers: int) -> None:
        self._nodes: list[Daemon] = []
        for number in range(peers):
            address = self._nodes[0].address if self._nodes else ""
            self._nodes.append(Daemon(children, folder / str(number), address, ""))
        founder = self._nodes[0]
        self._run = str(founder.client.create_run(MANIFEST.format(peers=peers), True)["run"])
        for node in self._nodes[1:]:
            until(node.client.peers, "a connection", PATIENCE, node.words)
            node.client.join_run(self._run, True)
        self._next = 0
        self._loaders: list[subprocess.Popen[bytes]] = []

    def settle(self) -> None:
        """Wait until all have taken part in the last rounds."""
        until(lambda: len(self._last(2)) == 2 and all(map(self._is_whole, self._last(2))), "all to take part", PATIENCE)

    def window(self, seconds: float, every: float, blow: Callable[[], None]) -> Window:
        """So many seconds, with a blow each time that `every` seconds are over."""
        first, begun = self._last(1)[-1], time.monotonic()
        blows = 0
        while (passed := time.monotonic() - begun) < seconds:
            if passed >= (blows + 0.5) * every:
                blows += 1
                blow()
            time.sleep(0.05)
        self._check_loaders()
        rows = [row for row in self._last(1000) if row["round"] >= first["round"]]
        times = [row["applied_at"] for row in rows]
        if len(rows) < 2:
            raise TooLate(f"no round in {seconds:g} s")
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return Window((rows[-1]["samples"] - first["samples"]) / (times[-1] - times[0]), max(gaps))

    def kill_next(self) -> None:
        """The next node dies and is started again."""
        self._advance().restart()

    def load_next(self) -> None:
        """What the next node would import and load at a start is imported and loaded beside it."""
        words = (str(self._advance().run_folder(self._run)), self._run)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._loaders += [subprocess.Popen([sys.executable, "-c", code, *words], env=environ) for code in LOADERS]

    def _advance(self) -> Daemon:
        self._next += 1
        return self._nodes[self._next % len(self._nodes)]

    def _check_loaders(self) -> None:
        assert not any(each.wait(PATIENCE) for each in self._loaders), "what is to be loaded cannot be"
        self._loaders = []

    def _is_whole(self, row: Answer) -> bool:
        return bool(row["contributors"] == len(self._nodes))

    def _last(self, count: int) -> list[Answer]:
        """The last rounds, of the node that knows most of them."""
        known: list[list[Answer]] = [[]]
        for node in self._nodes:
            try:
                known.append([dict(row) for row in node.client.rounds(self._run, count)])
            except ShoalError:  # it is being started
                continue
        return max(known, key=lambda rows: (len(rows), rows[-1]["round"] if rows else 0))


def _words(result: Result) -> str:
    figures = f"{result.calm:6.0f} {result.kills:6.0f} {result.limit:6.0f}"
    verdict = "" if result.is_good else f"   below its goal of {GOALS[result.every]:g}"
    shares = f"{result.of_limit:24.3f} {result.of_calm:9.3f} {result.pause:13.2f} s"
    return f"{result.every:8.0f} s {figures}{shares}{verdict}"


def _numbers(words: str) -> list[float]:
    return [float(word) for word in words.split(",")]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--every", type=_numbers, default=[15.0, 60.0], help="seconds between two kills, as 15,60")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a window; 0: four kills")
    parser.add_argument("--turns", type=int, default=3, help="windows of each kind")
    parser.add_argument("--json", action="store_true", help="one JSON line per rhythm")
    options = parser.parse_args()
    if options.peers < 3 or min(options.every) < 5 or options.turns < 1:
        parser.error("--peers must be at least 3, --every at least 5, --turns at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

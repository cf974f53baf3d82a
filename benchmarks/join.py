"""How fast a newcomer gets a run's state from donors with limited lines: real daemons in network namespaces.

    sudo .venv/bin/python benchmarks/join.py              all cases, about a quarter of an hour on two cores
    sudo .venv/bin/python benchmarks/join.py --case half --mib 256 --json

Three donors hold a state of random numbers, each behind a kernel's token bucket (`tc ... tbf`) of 200 Mbit/s; joiners
have no limit. A download lasts from its first sight in `shoal status` until the state is installed.

    line    One joiner. Goal: 90 % of what the three lines carry together, by their nominal rate.
    killed  A donor is killed with SIGKILL at a third. Goal: at most 1.1 times what the lines could do: all three until
            then, and for what is missing then the two that are left.
    five    Five joiners at once, of a state of a quarter of the size, from the first begin to the last end. Goal: at
            most 1.5 times what one alone takes, in the same lab just before.
    beside  One joiner, while a donor trains in a run of its own, with one core for its daemon and its worker, and the
            others for all other processes. The tokens a second of that, in those of a machine that trains likewise and
            donates nothing, during another download; the median of three turns. Goal: 95 %.
    half    The joiner is killed at half, and started again at once. Goal: it then fetches at most 55 % of the state, by
            its network interface.

`memory` is how much more memory the joiner (of several, the first) held at its peak than before it joined, in states.
torch itself takes some 200 MiB of it, and the least beside that is 1. Goal: a state and 400 MiB.
0 if all goals are reached.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the laboratory, which is the tests'

from kit import large_state
from kit.daemons import TooLate, until
from kit.ending import ended

from shoal.node.client.up.processes import Children
from tests.netlab.lab import Lab, network, what_is_missing
from tests.netlab.namespaces import run
from tests.netlab.nodes import LabNode
from tests.netlab.segments import Segment

DONORS, JOINERS = 3, 5
CORES = sorted(os.sched_getaffinity(0))
CASES = ("line", "killed", "five", "half", "beside")
GOALS = {"line": 0.9, "killed": 1.1, "five": 1.5, "half": 0.55, "beside": 0.95}
AT_LEAST = ("line", "beside")  # cases whose figure must not be lower than its goal
MOST_BESIDE = 400  # MiB of memory that a joiner takes beside the state, torch included
TURNS = 3
ENOUGH = 10  # rounds of the training beside a download, for its speed to say something
TRAINED = """
name = "beside"
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
min_members = 1
start_members = 1
"""
LOOK = 0.1  # seconds
PATIENCE = 600.0  # seconds, of a busy machine


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer; `figure` is what the case's goal is about."""

    case: str
    mib: int
    mbit: float
    seconds: float  # of the download, or of all
    least: float  # seconds that the lines need for it
    figure: float
    memory: float
    ok: bool


class Half(Exception):
    """Half of the state is here."""


def main() -> int:
    """Play the cases; 0 if all goals are reached."""
    options = _parse()
    if missing := what_is_missing():
        print(f"there can be no laboratory here: {missing}", file=sys.stderr)
        return 1
    results = []
    for case in options.case:
        results.append(play(case, options.mib // 4 if case == "five" else options.mib, options.mbit))
        print(json.dumps(asdict(results[-1])) if options.json else _words(results[-1]), flush=True)
    return 0 if all(result.ok for result in results) else 1


def play(case: str, mib: int, mbit: float) -> Result:
    """One case, with donors and joiners of its own."""
    with swarm(mib, mbit) as place:
        played = {"line": line, "killed": killed, "five": five, "half": half, "beside": beside}[case](place)
    seconds, least, figure, memory = (round(each, 3) for each in played)
    is_good = figure >= GOALS[case] if case in AT_LEAST else figure <= GOALS[case]
    is_small = memory <= 1.0 + MOST_BESIDE / mib
    return Result(case, mib, mbit, seconds, least, figure, memory, is_good and is_small)


# -- the cases: seconds, seconds that the lines need, the figure of the goal, memory -------------------------------

Played = tuple[float, float, float, float]


def line(place: Swarm) -> Played:
    """One joiner, three donors."""
    joiner = place.newcomer()
    seconds = joiner.download(place.run)
    least = place.least(1.0, DONORS)
    return seconds, least, least / seconds, joiner.memory(place.size)


def killed(place: Swarm) -> Played:
    """The same, with a donor that dies at a third."""
    joiner, after = place.newcomer(), list[float]()

    def kill_at_third(seconds: float, share: float) -> None:
        if not after and share >= 1 / 3:
            place.donors[-1].kill()
            after.extend((seconds, 1 - share))

    seconds = joiner.download(place.run, kill_at_third)
    least = after[0] + place.least(after[1], DONORS - 1)
    return seconds, least, seconds / least, joiner.memory(place.size)


def five(place: Swarm) -> Played:
    """One alone, then five at once."""
    alone = place.newcomer()
    one = alone.download(place.run)
    alone.leave(place.run)
    alone.kill()
    joiners = [place.newcomer() for _ in range(JOINERS)]
    with ThreadPoolExecutor(JOINERS) as pool:
        spans = list(pool.map(lambda each: each.download_span(place.run), joiners))
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return seconds, one, seconds / one, joiners[0].memory(place.size)


def half(place: Swarm) -> Played:
    """A joiner that is killed at half and starts again."""
    joiner = place.newcomer()

    def kill_at_half(seconds: float, share: float) -> None:
        if share >= 0.5:
            joiner.kill()
            raise Half

    begin = time.monotonic()
    try:
        joiner.download(place.run, kill_at_half)
        raise TooLate("the download was over before its half was seen")
    except Half:
        came = joiner.received()
    joiner.start()
    until(joiner.is_done, "the second try", PATIENCE, joiner.node.words)
    fetched = joiner.received() - came
    return time.monotonic() - begin, place.least(1.0, DONORS), fetched / place.size, joiner.memory(place.size)


def beside(place: Swarm) -> Played:
    """A donor trains, and then a machine that holds no state."""
    bystander, shares = place.newcomer(), list[float]()
    for _ in range(TURNS):
        donating, seconds, memory = trained_beside(place, place.donors[0])
        alone, *_ = trained_beside(place, bystander)
        shares.append(donating / alone)
    return seconds, place.least(1.0, DONORS), statistics.median(shares), memory


def trained_beside(place: Swarm, trainer: Machine) -> tuple[float, float, float]:
    """The tokens a second of a run of the `trainer` alone during a download; the download's seconds and memory.

    What else it does, such as encrypting a state, takes the time of its worker's core, and of no other.
    """
    joiner, seen = place.newcomer(), list[dict[str, Any]]()
    own, *others = CORES
    pin(os.getpid(), others)
    for machine in place.living:
        pin(machine.pid, [own] if machine is trainer else others)
    run = trainer.train()
    until(lambda: trainer.last_round(run)["round"] > 1, "rounds", PATIENCE, trainer.node.words)
    seconds = joiner.download(place.run, lambda seconds, share: seen.append(trainer.last_round(run)))
    memory = joiner.memory(place.size)
    trainer.leave(run)
    joiner.leave(place.run)
    joiner.kill()
    first, last = seen[0], seen[-1]
    if last["round"] < first["round"] + ENOUGH:
        raise TooLate("the download was over after too few rounds of the training beside it: give --mib more")
    speed = (last["samples"] - first["samples"]) / (last["applied_at"] - first["applied_at"])
    return speed, seconds, memory


def pin(pid: int, cores: Sequence[int]) -> None:
    """Have a process, and whatever it starts later, run on these cores only."""
    done: set[str] = set()
    while new := {thread.name for thread in Path(f"/proc/{pid}/task").iterdir()} - done:
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)
        done |= new


# -- the swarm -----------------------------------------------------------------------------------------------------


class Machine:
    """A daemon in a network namespace of its own."""

    def __init__(self, lan: Segment, lab: Lab, children: Children, folder: Path, number: int, door: str) -> None:
        host = lab.machine(f"m{number}")
        host.address = f"10.77.0.{number + 1}"
        self.device = lan.plug(host, f"{host.address}/24", "eth0")
        self.node = LabNode(host, folder / str(number))
        self._children, self._door = children, door
        self._before = 0  # bytes of memory
        self.start()

    def start(self) -> None:
        """Start the daemon, which enters the runs that it was in."""
        known = (self._door,) if self._door else ()
        self.node.start(self._children, bootstrap=known, mdns=False, port_mapping=False, train=False)
        until(self.node.status, "a daemon to start", PATIENCE, self.node.words)

    def limit(self, mbit: float) -> None:
        """Whatever leaves this machine passes a token bucket from now on."""
        bucket = f"qdisc add dev {self.device} root tbf rate {mbit:g}mbit burst 128kb latency 100ms"
        run("tc", "-n", self.node.host.name, *bucket.split())

    @property
    def pid(self) -> int:
        """Of the daemon."""
        assert self.node.child is not None
        return self.node.child.process.pid

    def kill(self) -> None:
        """SIGKILL; on return it is dead."""
        child = self.node.child
        assert child is not None
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: child.code() is not None, "the end of a daemon", PATIENCE)
        self.node.home.forget_daemon()

    def join(self, run: str) -> None:
        """Join, without training."""
        until(self.node.peers, "a connection", PATIENCE, self.node.words)
        self._before = self._memory("VmRSS")
        assert self.node.ask(lambda client: client.join_run(run, False)), self.node.words()

    def train(self) -> str:
        """Found a small run and train in it; its id."""
        created = self.node.ask(lambda client: client.create_run(TRAINED, True))
        assert created, self.node.words()
        return str(created["run"])

    def last_round(self, run: str) -> dict[str, Any]:
        """The record of a run's last round here; round 0 before the first."""
        rows = self.node.ask(lambda client: client.rounds(run, 1))
        return dict(rows[0]) if rows else {"round": 0}

    def leave(self, run: str) -> None:
        """Leave the run for good."""
        self.node.ask(lambda client: client.leave_run(run))

    def download(self, run: str, watch: Callable[[float, float], None] = lambda seconds, share: None) -> float:
        """Join; the seconds of the download. `watch` gets the seconds and the share that is here, again and again."""
        begin, end = self.download_span(run, watch)
        return end - begin

    def download_span(
        self, run: str, watch: Callable[[float, float], None] = lambda seconds, share: None
    ) -> tuple[float, float]:
        """The same: when the download has begun and when it was over."""
        self.join(run)
        begin = 0.0
        deadline = time.monotonic() + PATIENCE
        while not self.is_done():
            if (share := self._share()) is not None:
                begin = begin or time.monotonic()
                watch(time.monotonic() - begin, share)
            if time.monotonic() > deadline:
                raise TooLate(f"no state in {PATIENCE:g} s: {self.node.status()}\n{self.node.words()}")
            time.sleep(LOOK)
        return begin, time.monotonic()

    def is_done(self) -> bool:
        """Whether the state is here."""
        return self._row().get("phase") == "matching"

    def received(self) -> int:
        """Bytes that its interface has received."""
        counters = json.loads(run("ip", "-n", self.node.host.name, "-s", "-j", "link", "show", self.device))
        return int(counters[0]["stats64"]["rx"]["bytes"])

    def memory(self, size: int) -> float:
        """By how much the peak of its memory exceeds what it was before it joined, in states of this size."""
        return (self._memory("VmHWM") - self._before) / size

    def _row(self) -> dict[str, Any]:
        return dict(next(iter(self.node.status().get("runs") or ()), {}))

    def _share(self) -> float | None:
        """How much of the state is here; None before the download has begun."""
        words = str(self._row().get("waiting_for") or "").partition("downloaded: ")[2].split()
        return int(words[0].replace(",", "")) / int(words[2].replace(",", "")) if words else None

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


class Swarm:
    """Donors that hold the state, and places for newcomers."""

    def __init__(self, lab: Lab, children: Children, folder: Path, mib: int, mbit: float) -> None:
        self._lab, self._children, self._folder, self._mbit = lab, children, folder, mbit
        self._lan = lab.segment("lan")
        self.machines: list[Machine] = []
        manifest, checkpoint = large_state.make(folder, mib)
        self.donors: list[Machine] = []
        for _ in range(DONORS):
            self.donors.append(self._machine())
        founder = self.donors[0].node
        created = founder.ask(lambda client: client.create_run(manifest, False, [str(checkpoint)]))
        assert created, founder.words()
        self.run = str(created["run"])
        self.size = large_state.size(checkpoint)
        for donor in self.donors[1:]:
            donor.download(self.run)
        for donor in self.donors:
            donor.limit(mbit)

    def newcomer(self) -> Machine:
        """A machine that has joined nothing yet."""
        return self._machine()

    @property
    def living(self) -> list[Machine]:
        """Those whose daemons run."""
        return [each for each in self.machines if each.node.child is not None and each.node.child.code() is None]

    def least(self, share: float, lines: int) -> float:
        """The seconds that so many donors' lines need for a share of the state."""
        return share * self.size * 8 / (lines * self._mbit * 1e6)

    def _machine(self) -> Machine:
        door = self.donors[0].node.door if self.donors else ""
        number = len(self.machines) + 1
        self.machines.append(Machine(self._lan, self._lab, self._children, self._folder, number, door))
        return self.machines[-1]


@contextmanager
def swarm(mib: int, mbit: float) -> Iterator[Swarm]:
    """A lab with donors; nothing of it is left behind."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-join-") as folder,
        network() as lab,
        Children(grace=0.0) as children,
    ):
        yield Swarm(lab, children, Path(folder), mib, mbit)


def _words(result: Result) -> str:
    what = {
        "line": f"{result.figure:.1%} of the lines",
        "killed": f"{result.figure:.3f} times what the lines could do",
        "five": f"{result.figure:.2f} times one alone",
        "half": f"{result.figure:.1%} fetched by the second try",
        "beside": f"{result.figure:.1%} of the training of who donates nothing",
    }[result.case]
    words = f"{result.case:7} {result.mib:5} MiB {result.seconds:7.2f} s, least {result.least:6.2f} s; {what}"
    return f"{words}; memory {result.memory:.2f} states{'' if result.ok else '   MISSES ITS GOAL'}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--mib", type=int, default=1024, help="of the state, a multiple of 512; `five` has a quarter")
    parser.add_argument("--mbit", type=float, default=200.0, help="Mbit/s of each donor")
    parser.add_argument("--json", action="store_true", help="one JSON line per case")
    options = parser.parse_args()
    if options.mib < 512 or options.mib % 512:
        parser.error("--mib must be a multiple of 512")
    if "beside" in options.case and len(CORES) < 2:
        parser.error("`beside` needs two cores")
    return options


if __name__ == "__main__":
    sys.exit(ended("join.py", main))

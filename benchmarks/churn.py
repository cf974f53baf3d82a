"""How much longer a round takes when a peer dies or stops in it: real daemons, and a vector of 64 MiB.

    python benchmarks/churn.py --times 5                       all cases; about half an hour on two cores
    python benchmarks/churn.py --kinds kill --roles owner --when gather --times 3 --json
    python benchmarks/churn.py --times 5 --against hivemind   hivemind's averaging beside it, where it is installed

In each play a run is founded, and one peer is struck in round 6 (SHOAL_FAULT, see node/base/fault_injection.py): by
SIGKILL or by SIGSTOP; as contributor, who owns none of the vector, as owner, or as proposer; in the scatter, in the
gather, or as it is about to vote on the result. Those who live hold the same state after that round, or the case fails.

`later`: seconds of round 6, from when the last of the survivors hands in until the last of them has applied the result,
less the median of rounds 4 and 5 of the same play; the median of all plays, and the worst. `sent again`: bytes that one
survivor has contributed a second time, the most of all, beside the share of the vector that the victim owned. Goals are
1.0 s after SIGKILL, 3.0 s after SIGSTOP, and the share. 0 if every play was right, and every median within its goal.

In hivemind every peer contributes and owns, and nobody proposes: one of four is struck in the middle of its third
average, by the time that the second took. Its own timeouts are its defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kit.daemons import Daemon, TooLate, until
from kit.fleet import HIVEMIND, Fleet, script
from kit.peer import Task

from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children, fork_server

MIB = 1 << 20
CALM, FAULT_ROUND = (4, 5), 6  # by round 4 all of four vote
SEED = 7
BLOWS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
GOALS = {"kill": 1.0, "stop": 3.0}  # seconds
ROLES, MOMENTS = ("contributor", "owner", "proposer"), ("scatter", "gather", "decision")
PATIENCE = 180.0  # seconds, of a busy machine, for a play's calm rounds; as many for the round of the fault
MANIFEST = """
name = "churn"
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
start_members = {peers}
last = {last}
max_group = {owners}
chunk_bytes = {chunk}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Who is struck, how, and when."""

    kind: str
    role: str
    when: str

    @property
    def fault(self) -> str:
        """For SHOAL_FAULT."""
        return f"{self.kind} round={FAULT_ROUND} role={self.role} when={self.when}"


@dataclass(frozen=True, slots=True)
class Strike:
    """What one play has shown."""

    calm: float  # seconds of an undisturbed round
    later: float  # seconds
    again: float  # MiB
    share: float  # MiB
    is_same: bool  # whether all survivors hold the same state


@dataclass(frozen=True, slots=True)
class Result:
    """One case's."""

    kind: str
    role: str
    when: str
    times: int
    failed: int  # plays that came to no end, or in which the survivors' states differ
    calm: float | None = None  # the median
    later: float | None = None  # the median
    latest: float | None = None
    again: float | None = None  # the most
    share: float | None = None

    @property
    def is_good(self) -> bool:
        """Whether it was measured, is right, and reaches its goals."""
        if self.later is None or self.again is None or self.share is None:
            return False
        return not self.failed and self.later <= GOALS[self.kind] and self.again <= self.share


def main() -> int:
    """Play all cases."""
    options = _parse()
    deadline = time.monotonic() + 60 * options.minutes
    is_good = True
    if not options.json:
        print(f"{'':28} plays  calm round    later   latest   sent again", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="shoal-churn-") as folder,
        fork_server() as server,
        Children(grace=0.0, server=server) as children,
    ):
        swarm = Swarm(children, Path(folder), options.peers, options.mib)
        for parts in itertools.product(options.kinds, options.roles, options.when):
            result = measure(Case(*parts), swarm, options.times, deadline)
            print(json.dumps(asdict(result)) if options.json else _words(result), flush=True)
            is_good &= result.is_good
    for kind in options.kinds if options.against else ():
        row = beside(kind, options.peers, options.mib, options.times)
        print(json.dumps(row) if options.json else _words_of_hivemind(row), flush=True)
    return 0 if is_good else 1


def measure(case: Case, swarm: Swarm, times: int, deadline: float) -> Result:
    """All plays of a case, as far as there is time; reasons why one failed go to stderr."""
    strikes, failed = list[Strike](), 0
    for _ in range(times):
        if time.monotonic() > deadline:
            print(f"{case.fault}: {len(strikes)} plays only, as the time is over", file=sys.stderr)
            break
        try:
            strikes.append(swarm.play(case))
        except TooLate as late:
            print(f"{case.fault}: {late}", file=sys.stderr)
            failed += 1
            swarm.end()
    return of_strikes(case, strikes, failed)


def of_strikes(case: Case, strikes: Sequence[Strike], failed: int) -> Result:
    """The plays of a case in sum."""
    failed += sum(not strike.is_same for strike in strikes)
    if not strikes:
        return Result(case.kind, case.role, case.when, 0, failed)
    return Result(
        *(case.kind, case.role, case.when, len(strikes), failed),
        calm=round(statistics.median(each.calm for each in strikes), 2),
        later=round(statistics.median(each.later for each in strikes), 2),
        latest=round(max(each.later for each in strikes), 2),
        again=round(max(each.again for each in strikes), 1),
        share=round(max(each.share for each in strikes), 1),
    )


def beside(kind: str, peers: int, mib: int, times: int) -> dict[str, Any]:
    """The same of hivemind's averaging, which finds its group before the clock starts."""
    calm, later, same, failed = list[float](), list[float](), 0, 0
    tasks = [Task(rank, peers, mib * MIB // 4, "fp32", SEED) for rank in range(peers)]
    for _ in range(times):
        with Fleet(script("churn_hivemind.py", HIVEMIND), tasks, PATIENCE) as fleet:
            fleet.gather()
            fleet.lap(1)
            usual = fleet.lap(2).seconds
            answers = fleet.strike(3, peers - 1, usual / 2, BLOWS[kind])
        took = max(each["held"] for each in answers) - max(each["submitted"] for each in answers)
        calm.append(usual)
        later.append(took - usual)
        same += len({each["digest"] for each in answers}) == 1
        failed += any(each["failure"] for each in answers)
    return {
        "system": "hivemind",
        "kind": kind,
        "times": times,
        "calm": round(statistics.median(calm), 2),
        "later": round(statistics.median(later), 2),
        "latest": round(max(later), 2),
        "same": same,  # plays after which all survivors hold the same bytes
        "failed": failed,  # plays in which a survivor was told that its average had failed
    }


class Swarm:
    """The daemons: a play leaves all but the victim, in whose place another is started."""

    def __init__(self, children: Children, folder: Path, peers: int, mib: int) -> None:
        self._children, self._folder, self._peers, self._mib = children, folder, peers, mib
        self._chunk = MIB if mib > 16 else MIB // 4  # bytes
        self._daemons: list[Daemon] = []
        self._started = 0

    def play(self, case: Case) -> Strike:
        """One run, in which one is struck; TooLate if it does not come to its end."""
        self._arm(case)
        founder = self._daemons[-1] if case.role == "proposer" else self._daemons[0]  # who founds proposes
        owners = self._peers - (case.role == "contributor")
        run = str(founder.client.create_run(self._manifest(owners), True)["run"])
        for daemon in self._daemons:
            if daemon is not founder:
                until(daemon.client.peers, "a connection", PATIENCE, daemon.words)
                daemon.client.join_run(run, True)
        until(lambda: self._victims() or self._is_over(self._daemons), "the fault to strike", PATIENCE, self._words)
        if not (victims := self._victims()):
            raise TooLate(f"nobody was struck\n{self._words()}")
        (victim,) = victims
        living = [each for each in self._daemons if each is not victim]
        until(lambda: self._is_over(living), "the round", PATIENCE, self._words)
        share = self._mib / owners + self._chunk / MIB if case.role != "contributor" else 0.0
        strike = self._strike(living, run, share)
        victim.kill()
        self._daemons = living
        for daemon in living:
            daemon.client.leave_run(run)
        for daemon in (victim, *living):  # its checkpoints stay otherwise
            shutil.rmtree(daemon.run_folder(run), ignore_errors=True)
        return strike

    def end(self) -> None:
        """End all: the next play begins with others."""
        for daemon in self._daemons:
            daemon.kill()
        self._daemons = []

    def _arm(self, case: Case) -> None:
        """Who owns nothing is not known before: all carry that fault. Another one is carried by the last alone."""
        usual = case.fault if case.role == "contributor" else ""
        for daemon in [each for each in self._daemons if each.fault != usual]:
            daemon.kill()
            self._daemons.remove(daemon)
        while len(self._daemons) < self._peers:
            is_last = len(self._daemons) == self._peers - 1
            bootstrap = self._daemons[0].address if self._daemons else ""
            fault = case.fault if is_last else usual
            self._daemons.append(Daemon(self._children, self._folder / str(self._started), bootstrap, fault))
            self._started += 1

    def _manifest(self, owners: int) -> str:
        dim = 1024 if self._mib > 16 else 256
        hidden = (self._mib * MIB // 4 // dim - 256 - 4 * dim) // 24 * 8
        settings = {"peers": self._peers, "last": FAULT_ROUND, "owners": owners, "chunk": self._chunk}
        return MANIFEST.format(dim=dim, hidden=hidden, **settings)

    def _victims(self) -> list[Daemon]:
        return [each for each in self._daemons if each.is_struck]

    def _is_over(self, daemons: Sequence[Daemon]) -> bool:
        return all(each.row().get("round") == FAULT_ROUND for each in daemons)

    def _strike(self, living: Sequence[Daemon], run: str, share: float) -> Strike:
        rounds: list[dict[int, Answer]] = [{row["round"]: row for row in each.client.rounds(run)} for each in living]
        seconds = {number: _seconds([rows[number] for rows in rounds]) for number in (*CALM, FAULT_ROUND)}
        calm = statistics.median(seconds[number] for number in CALM)
        again = max(rows[FAULT_ROUND]["resent"] for rows in rounds) / MIB
        roots = {each.row()["root"] for each in living}
        return Strike(calm, seconds[FAULT_ROUND] - calm, again, share, len(roots) == 1)

    def _words(self) -> str:
        return "\n".join(f"{each.row()}\n{each.words()}" for each in self._daemons)


def _seconds(rows: Sequence[Answer]) -> float:
    """How long a round took, by what several members say of it."""
    ready = max(row["applied_at"] - row["seconds"] for row in rows)
    return float(max(row["applied_at"] for row in rows) - ready)


def _words(result: Result) -> str:
    name = f"SIG{result.kind.upper()} of {result.role}, {result.when}"
    if result.later is None:
        return f"{name:32}  failed" if result.failed else f"{name:32}  not played"
    return (
        f"{name:32} {result.times:2}  {result.calm:8.2f} s {result.later:6.2f} s {result.latest:6.2f} s"
        f"   {result.again:5.1f} of {result.share:.1f} MiB{_verdict(result)}"
    )


def _words_of_hivemind(row: dict[str, Any]) -> str:
    figures = f"{row['times']:2}  {row['calm']:8.2f} s {row['later']:6.2f} s {row['latest']:6.2f} s"
    ends = f"same bytes in {row['same']}, failed in {row['failed']} of {row['times']}"
    return f"{'hivemind, SIG' + row['kind'].upper():32} {figures}   {ends}"


def _verdict(result: Result) -> str:
    if result.is_good:
        return ""
    if result.failed:
        return "   WRONG"
    is_late = result.later is not None and result.later > GOALS[result.kind]
    return f"   over its goal of {GOALS[result.kind]:g} s" if is_late else "   more was sent again than that"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="MiB of fp32, at least 2")
    parser.add_argument("--times", type=int, default=5, help="plays of each case")
    parser.add_argument("--minutes", type=float, default=120.0, help="no play begins later than that")
    for name, known in (("kinds", tuple(GOALS)), ("roles", ROLES), ("when", MOMENTS)):
        parser.add_argument(f"--{name}", nargs="+", default=known, choices=known)
    parser.add_argument("--against", choices=("hivemind",), help="measured, too")
    parser.add_argument("--json", action="store_true", help="one JSON line per case")
    options = parser.parse_args()
    if options.peers < 3 or options.mib < 2 or options.times < 1:
        parser.error("--peers must be at least 3, --mib at least 2, --times at least 1")
    if options.against and not HIVEMIND.exists():
        parser.error("hivemind is not installed: `make bench-peers` does that")
    return options


if __name__ == "__main__":
    sys.exit(main())

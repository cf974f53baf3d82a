"""How long one all-reduce takes, by Shoal and by its peers, on this machine and in the same run.

    python benchmarks/allreduce.py --peers 4 --mib 64 --codec fp32 --against gloo,hivemind --json

Every system gets the same random vectors in its own processes, over loopback, and they take turns, one round each, so
that a machine that is slow for a while is slow for all. `seconds` is the median over rounds of the
time from the last peer's submit until the slowest peer holds the mean: for Shoal finding the group and the vote are in
it, for hivemind the group is found before the clock starts. `bytes` is what the loopback interface carried in that time
for all peers together, headers included. `ok`: in every round, that of the warm-up too, every peer's mean was as close
to the fp64 mean as the codec allows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from kit.fleet import HIVEMIND, Fleet, Lap, PeerFailed, has_hivemind, script
from kit.peer import Task
from kit.vectors import TOLERANCE

SEED = 7
PATIENCE = 180.0  # seconds for one round of one system
CODECS = {
    "shoal": ("fp32", "fp16", "bf16", "int8", "fp4"),
    "gloo": ("fp32",),
    "hivemind": ("fp32", "fp16", "int8"),
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one system."""

    system: str
    peers: int
    mib: int
    codec: str
    seconds: float | None
    bytes: int | None
    ok: bool


def main() -> int:
    """Measures all systems; 0 if all results are right."""
    options = _parse()
    codecs = dict.fromkeys(able(["shoal", *options.against], options.codec), options.codec)
    results = measure(codecs, options.peers, options.mib, options.rounds, options.patience)
    for result in results:
        print(json.dumps(asdict(result)) if options.json else _words(result), flush=True)
    return 0 if results and all(result.ok for result in results) else 1


def able(systems: Sequence[str], codec: str) -> list[str]:
    """The systems that can be measured; reasons why others cannot go to stderr."""
    found = []
    for system in systems:
        if codec not in CODECS[system]:
            print(f"{system} has no codec {codec}: left out", file=sys.stderr)
        elif system != "hivemind" or has_hivemind():
            found.append(system)
    return found


def measure(codecs: Mapping[str, str], peers: int, mib: int, rounds: int, patience: float = PATIENCE) -> list[Result]:
    """All rounds of all systems, each with its codec, in turns; one that fails is not ok, the reason goes to stderr."""
    laps: dict[str, list[Lap]] = {system: [] for system in codecs}
    failed = set[str]()

    def step(system: str, round: int) -> None:
        try:
            if round:
                laps[system].append(fleets[system].lap(round))
            else:
                fleets[system].gather()
        except PeerFailed as failure:
            print(f"{system} failed in round {round}: {failure}", file=sys.stderr)
            failed.add(system)

    with ExitStack() as stack:
        fleets = {
            system: stack.enter_context(Fleet(_argv(system), _tasks(peers, mib, codec), patience))
            for system, codec in codecs.items()
        }
        for round in range(rounds + 2):  # first they find each other, then one round warms up
            for system in codecs:
                if system not in failed:
                    step(system, round)
    return [
        Result(system, peers, mib, codec, None, None, False)
        if system in failed
        else _result(system, peers, mib, codec, laps[system])
        for system, codec in codecs.items()
    ]


def _tasks(peers: int, mib: int, codec: str) -> list[Task]:
    return [Task(rank, peers, mib * (1 << 20) // 4, codec, SEED) for rank in range(peers)]


def _result(system: str, peers: int, mib: int, codec: str, laps: Sequence[Lap]) -> Result:
    ok = all(lap.error <= TOLERANCE[codec] for lap in laps)
    measured = laps[1:]  # the first one warms up
    seconds = statistics.median(lap.seconds for lap in measured)
    sizes = [lap.bytes for lap in measured if lap.bytes is not None]
    sent = int(statistics.median(sizes)) if sizes else None
    return Result(system, peers, mib, codec, round(seconds, 4), sent, ok)


def _argv(system: str) -> list[str]:
    python = HIVEMIND if system == "hivemind" else sys.executable
    return script(f"allreduce_{system}.py", python)


def _words(result: Result) -> str:
    if result.seconds is None:
        return f"{result.system:10} failed"
    size = f"{result.bytes / 1e6:8.1f} MB in all" if result.bytes is not None else ""
    return f"{result.system:10} {result.seconds:8.3f} s {size}{'' if result.ok else '   WRONG RESULT'}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time one all-reduce by Shoal and by its peers.")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="MiB of fp32 per peer")
    parser.add_argument("--codec", default="fp32", choices=sorted(TOLERANCE))
    parser.add_argument("--against", default=[], type=_systems, help="gloo,hivemind")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds; one more warms up")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one round of one system")
    parser.add_argument("--json", action="store_true", help="one JSON line per system")
    options = parser.parse_args()
    if min(options.peers - 1, options.mib, options.rounds) < 1:
        parser.error("--peers must be at least 2, --mib and --rounds at least 1")
    return options


def _systems(names: str) -> list[str]:
    systems = [name for name in names.split(",") if name]
    if unknown := set(systems) - {"gloo", "hivemind"}:
        raise argparse.ArgumentTypeError(f"unknown system '{min(unknown)}'; known are gloo and hivemind")
    return systems


if __name__ == "__main__":
    sys.exit(main())

"""How long one all-reduce takes between homes: four peers in a laboratory of networks, each behind a line of its own.

    sudo .venv/bin/python benchmarks/lab.py --cases even,lossy,slow,alike --json

Each peer is a process in a network namespace (docs/netlab.md). `limit` is the least time that these lines allow with
the best shares there are, if all of it went at the goodput that one plain TCP connection reached on the same line in
the same run (with `--tcp cubic` and losses that is less than the line carries, and several connections take less
time); for even lines that is 2 (N - 1) / N x bytes / goodput. `seconds` is the median over rounds of the time from the
last peer's submit until the slowest peer holds the mean: finding the group and the vote are in it. The first round, in
which nobody knows its line, is not.

    even    all lines alike
    lossy   the same, but one in a thousand packets between two of them is lost
    slow    one uplink is ten times slower
    alike   the same lines as `slow`, but nobody says how fast its own is: all own alike
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the laboratory, which is the tests'

from kit.fleet import Fleet, Lap, PeerFailed, script
from kit.peer import Task
from kit.vectors import TOLERANCE

from shoal.protocol.averaging.shares import Claim, Load, share
from tests.netlab.lab import network, what_is_missing
from tests.netlab.links import Link
from tests.netlab.probes import throughput
from tests.netlab.segments import Host

SEED = 7
FINE = 3_000  # chunks: so many that their number does not matter
GOODPUT_FOR, WARM = 6.0, 4.0  # seconds
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
CASES = ("even", "lossy", "slow", "alike")


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the answer."""

    case: str
    seconds: float | None
    limit: float
    rounds: list[float]
    goodput: list[float]  # Mbit/s up, of each peer
    known: list[tuple[float, float]]  # Mbit/s up and down, as the peers knew it at the end
    sockets: int  # from one peer to another at the end, at the most
    ok: bool


def main() -> int:
    """Measure each case in turn; 0 if all means are right."""
    options = _parse()
    if missing := what_is_missing():
        print(f"there can be no laboratory here: {missing}", file=sys.stderr)
        return 1
    results = []
    for case in options.cases:
        results.append(measure(case, options))
        print(json.dumps(asdict(results[-1])) if options.json else _words(results[-1]), flush=True)
    return 0 if all(result.ok for result in results) else 1


def links_of(case: str, options: argparse.Namespace) -> list[Link]:
    """Each peer's line."""
    plain = Link(delay=options.delay / 1e3, rate=options.mbit * 1e6)
    if case == "lossy":
        plain = replace(plain, loss=0.0005)  # on each of the two lines between two peers
    last = replace(plain, up=plain.rate / 10) if case in ("slow", "alike") else plain
    return [plain] * (options.peers - 1) + [last]


def measure(case: str, options: argparse.Namespace) -> Result:
    """All rounds of one case."""
    links, size = links_of(case, options), options.mib << 20
    with network(SEED) as lab:
        hosts = [lab.internet.host(f"peer{rank}", link=link) for rank, link in enumerate(links)]
        for host in hosts if options.tcp else ():
            host.set("net/ipv4/tcp_congestion_control", options.tcp)
        goodput = goodputs(hosts, links)
        laps = _laps(hosts, case, options)
    seconds = [round(lap.seconds, 3) for lap in laps[1:]]
    return Result(
        case,
        statistics.median(seconds) if seconds else None,
        round(limit([(up, goodput[0]) for up in goodput], size), 3),
        seconds,
        [round(each * 8 / 1e6, 2) for each in goodput],
        [(round(up * 8 / 1e6, 2), round(down * 8 / 1e6, 2)) for up, down in laps[-1].lines] if laps else [],
        laps[-1].sockets if laps else 0,
        len(laps) > options.rounds and all(lap.error <= TOLERANCE[options.codec] for lap in laps),
    )


def goodputs(hosts: Sequence[Host], links: Sequence[Link]) -> list[float]:
    """Bytes a second that one TCP connection brings out of each line; measured once for all that are alike."""
    found: dict[Link, float] = {}
    for host, link in zip(hosts, links, strict=True):
        if link not in found:
            other = hosts[1] if host is hosts[0] else hosts[0]
            found[link] = throughput(host, other, GOODPUT_FOR, WARM) / 8
    return [found[link] for link in links]


def limit(lines: Sequence[tuple[float, float]], size: int) -> float:
    """The least seconds for a vector of so many bytes, by lines of these bytes a second up and down."""
    counts = share([Claim(int(up), int(down)) for up, down in lines], Load(FINE), len(lines))
    others = len(lines) - 2  # what a chunk of one's own costs more than another
    return max(size * (1 + others * count / FINE) / min(line) for line, count in zip(lines, counts, strict=True))


def _laps(hosts: Sequence[Host], case: str, options: argparse.Namespace) -> list[Lap]:
    elements = (options.mib << 20) // 4
    claims = case != "alike"
    tasks = [
        Task(rank, len(hosts), elements, options.codec, SEED, host.address, claims) for rank, host in enumerate(hosts)
    ]
    laps: list[Lap] = []
    try:
        with Fleet(
            script("allreduce_shoal.py"), tasks, options.patience, lambda rank, argv: hosts[rank].argv(*argv)
        ) as fleet:
            fleet.gather()
            for round in range(1, options.rounds + 2):
                laps.append(fleet.lap(round))
    except PeerFailed as failure:
        print(f"{case} failed in round {len(laps) + 1}: {failure}", file=sys.stderr)
    return laps


def _words(result: Result) -> str:
    if result.seconds is None:
        return f"{result.case:8} failed"
    known = ", ".join(f"{up:g}/{down:g}" for up, down in result.known)
    return (
        f"{result.case:8} {result.seconds:7.2f} s, {result.seconds / result.limit:.2f} x the limit of "
        f"{result.limit:.2f} s; rounds {result.rounds}; known Mbit/s: {known}; "
        f"sockets {result.sockets}{'' if result.ok else '   WRONG RESULT'}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time one all-reduce between homes.")
    parser.add_argument("--cases", default=list(CASES), type=_cases, help=",".join(CASES))
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=16, help="MiB of fp32 per peer")
    parser.add_argument("--mbit", type=float, default=50.0, help="Mbit/s up and down")
    parser.add_argument("--delay", type=float, default=25.0, help="milliseconds of each line, one way")
    parser.add_argument("--tcp", metavar="NAME", help="of its congestion control: cubic, bbr; else the system's")
    parser.add_argument("--codec", default="fp32", choices=sorted(TOLERANCE))
    parser.add_argument("--rounds", type=int, default=8, help="measured rounds; one more warms up")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one round")
    parser.add_argument("--json", action="store_true", help="one JSON line per case")
    options = parser.parse_args()
    if options.tcp and options.tcp not in (known := CONTROLS.read_text().split()):
        parser.error(f"this system has no congestion control '{options.tcp}'; it has {', '.join(known)}")
    if min(options.peers - 2, options.mib, options.rounds) < 1:
        parser.error("--peers must be at least 3, --mib and --rounds at least 1")
    return options


def _cases(names: str) -> list[str]:
    cases = [name for name in names.split(",") if name]
    if unknown := set(cases) - set(CASES):
        raise argparse.ArgumentTypeError(f"unknown case '{min(unknown)}'; known are {', '.join(CASES)}")
    return cases


if __name__ == "__main__":
    sys.exit(main())

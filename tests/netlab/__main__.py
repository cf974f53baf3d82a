"""A lab to explore by hand: `python -m tests.netlab shell home-symmetric`; `list` names the topologies."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

from tests.netlab.lab import network, what_is_missing
from tests.netlab.links import Link
from tests.netlab.namespaces import Namespace
from tests.netlab.places import ALL, build, plan
from tests.netlab.segments import Host, Router, Segment

LIST = """Topologies for `python -m tests.netlab shell TOPOLOGY`. Each has a public machine, `server`, and `a` with

{places}

Join several with + for more machines, such as home-drop+home-symmetric for a and b."""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.netlab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="which topologies there are")
    shell = commands.add_parser("shell", help="a shell on a machine of a new lab, which is gone when it ends")
    shell.add_argument("topology")
    shell.add_argument("--on", default="a", help="the machine to begin on (default: %(default)s)")
    shell.add_argument("--delay", type=float, default=0, help="of every link, one way, in milliseconds")
    shell.add_argument("--rate", type=float, default=float("inf"), help="of every link, in Mbit/s")
    shell.add_argument("--loss", type=float, default=0, help="of every link, in per cent of the packets")
    return parser


def chart(members: Iterable[Namespace], indent: str = "") -> Iterator[str]:
    """All machines and their addresses, one to a line."""
    for machine in members:
        if isinstance(machine, Router):
            yield f"{indent}{machine.address:<15}  router ({machine.gate.policy}), inside {machine.network}.0/24:"
        elif isinstance(machine, Host):
            inside = machine.address != machine.public
            yield f"{indent}{machine.address:<15}  {machine}{'' if inside else f' ({machine.edge.policy})'}"
        if isinstance(machine, Segment):
            yield from chart(machine.members, indent + "    ")


def shell(asked: argparse.Namespace) -> int:
    """Build it, print who is where, and hand over to a shell."""
    try:
        link = Link(asked.delay / 1e3, asked.rate * 1e6, asked.loss / 1e2)
        if asked.on not in (labels := plan(asked.topology)):
            raise ValueError(f"there is no machine {asked.on!r}; there are {', '.join(labels)}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    with network() as lab:
        hosts = build(lab, asked.topology, link)
        print(f"The internet, each line with {link}:\n", *chart(lab.internet.members), sep="\n", end="\n\n")
        print("Another shell, elsewhere:", *(" ".join(host.argv("bash")) for host in hosts.values()), sep="\n  ")
        print(f"\nThis one is on {asked.on}; the lab is gone when it ends.", flush=True)
        return enter(hosts[asked.on])


def enter(host: Host) -> int:
    """A shell there, until it ends."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the shell's business
    try:
        return subprocess.call(
            host.argv("bash", "--norc"),
            env={**os.environ, "PS1": f"{host}# "},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> int:
    asked = arguments().parse_args()
    if asked.command == "list":
        print(LIST.format(places="\n".join(f"  {name:<16}{place.words}" for name, place in ALL.items())))
        return 0
    if missing := what_is_missing():
        print(f"No lab here: {missing}.", file=sys.stderr)
        return 1
    return shell(asked)


if __name__ == "__main__":
    sys.exit(main())

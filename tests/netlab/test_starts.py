"""The README's second start, word for word, on two machines in one home: two commands, and the second is in a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.protocol.base.errors import ShoalError
from tests.integration.nodes import until
from tests.netlab.gates import KEEPS_PORTS
from tests.netlab.lab import Lab
from tests.netlab.segments import Host
from tests.starts import TWO, Machine, blocks, link_in


def test_two_machines_and_a_link(lab: Lab, tmp_path: Path) -> None:
    home = lab.internet.router("home", KEEPS_PORTS)
    first, second = (home.host(name) for name in ("first", "second"))
    of_first, of_second = (Machine(tmp_path / host.label, host.argv()) for host in (first, second))
    ours, theirs = blocks(TWO)
    link = link_in([of_first.types(line) for line in ours][-1])
    begin = time.monotonic()
    said = [of_second.types(line.replace("LINK", link)) for line in theirs]
    assert "shoal run join LINK" in theirs
    assert "Join? [y/N] y" in said[0]
    assert "text (" in said[1]

    def log() -> str:
        return (of_second.home / "logs/daemon.log").read_text()[-3000:]

    until(lambda: counted(second, of_second), "a round in which both are counted", log)
    print(f"\n{time.monotonic() - begin:.1f} s from typing the link to a round that counts both")
    for machine in (of_second, of_first):
        machine.types("shoal node stop")


def counted(host: Host, machine: Machine) -> Any:
    """The rounds in which this node and another one were counted in every chunk; none while it does not answer."""

    def rounds(client: Client) -> list[Any]:
        return [
            each
            for run in client.runs()
            for each in client.rounds(str(run["run"]), 100)
            if each["took_part"] and each["contributors"] == 2
        ]

    return ask(host, machine, rounds) or []


def ask(host: Host, machine: Machine, what: Callable[[Client], Any]) -> Any:
    with suppress(ShoalError):
        return host.on(lambda: what(Client(Home(machine.home))))
    return None

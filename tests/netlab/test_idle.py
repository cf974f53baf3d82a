"""The traffic of an idle node behind a router, and its use: others can still call it after a long silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.gates import KEEPS_PORTS, Gate
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode

IDLE = 600.0  # seconds
FORGETS = 120  # seconds until the router forgets a connection without traffic: fewer than any that is sold
BITS, CORE = 2_000.0, 0.01  # a second, both directions with all headers; of one core
RELAYS = 3
SETTLE = 120.0  # seconds until a run in which nothing happens is at rest
LONG = 300.0  # seconds
WAITING = MANIFEST.replace("min_members = 2", "min_members = 3")


@dataclass(frozen=True)
class Cost:
    """Bytes as the router counts them, and seconds of a core as the kernel does."""

    bytes: int
    core: float

    @staticmethod
    def so_far(gate: Gate, node: LabNode) -> Cost:
        return Cost(gate.count("sent").bytes + gate.count("received").bytes, processor_seconds(node))


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("waits", [False, True], ids=["in no run", "in a run that waits"])
def test_ten_idle_minutes_cost_little_and_the_node_can_still_be_called(
    lab: Lab, children: Children, tmp_path: Path, waits: bool
) -> None:
    relays = [LabNode(lab.internet.host(f"relay{number}"), tmp_path / f"relay{number}") for number in range(RELAYS)]
    manifest = tmp_path / "waiting.toml"
    manifest.write_text(WAITING)
    for relay in relays:
        create = {"create": manifest} if waits and relay is relays[0] else {}
        relay.start(children, bootstrap=() if relay is relays[0] else (relays[0].door,), **create)
    until(lambda: all(each.status().get("reachability") == "public" for each in relays), "relays", words(relays), LONG)
    home = lab.internet.router("home", replace(KEEPS_PORTS, forgets=FORGETS))
    node = LabNode(home.host("node"), tmp_path / "node")
    node.start(children, bootstrap=(relays[0].door,), **({"join": (str(manifest),)} if waits else {}))
    until(lambda: len(node.status().get("relays", ())) == RELAYS, "reservations", words([node]), LONG)
    until(lambda: not waits or members(node) == 2, "the run", words([node, *relays]), LONG)

    pause(SETTLE)
    kept, before, begin = node.status()["relays"], Cost.so_far(home.edge, node), time.monotonic()
    pause(IDLE)
    after, seconds = Cost.so_far(home.edge, node), time.monotonic() - begin
    bits, core = 8 * (after.bytes - before.bytes) / seconds, (after.core - before.core) / seconds
    print(f"\n{seconds:.0f} s idle behind a router: {bits:.0f} bit/s, {core:.2%} of a core")
    assert sorted(node.status()["relays"]) == sorted(kept)
    assert "is gone" not in node.words(), "a relay was lost"

    address = next(each for each in node.status()["addresses"] if "p2p-circuit" in each)
    caller = LabNode(lab.internet.host("caller"), tmp_path / "caller").start(children, bootstrap=(address,))
    took = until(lambda: node.name() in caller.peers(), "the call", words([caller, node]), LONG)
    print(f"called by its relay, with the start of the caller in {took:.1f} s")
    assert bits < BITS
    assert core < CORE


def pause(seconds: float) -> None:
    """Nothing is waited for but time itself: that is the subject."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1.0)


def processor_seconds(node: LabNode) -> float:
    """User and system time of its process: proc(5), counted after the command's name."""
    assert node.child is not None
    fields = Path(f"/proc/{node.child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def members(node: LabNode) -> int:
    return max((int(row.get("members") or 0) for row in node.status().get("runs", ())), default=0)


def words(nodes: list[LabNode]) -> Callable[[], str]:
    return lambda: "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)

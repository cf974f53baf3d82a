"""`shoal doctor` between machines behind real routers: path, reason, both ends' views, the steps, and a rate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shoal.node.api.answers import Answer
from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle
from tests.netlab.test_relayed import is_public

PATIENCE = 120.0
SLOW = Link(delay=0.01, rate=20e6)
PLAUSIBLE = (20e6 / 8 / 8, 20e6 / 8 * 1.2)  # bytes a second: the laboratory's machine may be busy, its links are true


def test_doctor_says_how_two_are_connected_and_why(lab: Lab, children: Children, tmp_path: Path) -> None:
    relays = [LabNode(lab.internet.host(f"relay{number}"), tmp_path / f"relay{number}") for number in range(2)]
    symmetric = LabNode(settle(lab.internet, "home-symmetric", "symmetric", SLOW), tmp_path / "symmetric")
    dropping = LabNode(settle(lab.internet, "home-drop", "dropping", SLOW), tmp_path / "dropping")
    other = LabNode(settle(lab.internet, "home-drop", "other"), tmp_path / "other")
    homes = [symmetric, dropping, other]
    nodes = [*relays, *homes]

    def words() -> str:
        return "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)

    relays[0].start(children)
    relays[1].start(children, bootstrap=(relays[0].door,))
    until(lambda: all(is_public(each) for each in relays), "public nodes", words, PATIENCE)
    for node in homes:
        node.start(children, bootstrap=tuple(each.door for each in relays))
    for node in homes:
        until(lambda node=node: len(node.status().get("relays", ())) == 2, "relays", words, PATIENCE)  # type: ignore[misc]
        until(lambda node=node: node.status().get("reachability") == "nat", "their word", words, PATIENCE)  # type: ignore[misc]

    by_relay(symmetric, dropping)
    directly(relays[0], dropping)
    meeting(other, dropping)
    for peer, expected in ((dropping.name()[-6:], Exit.OK), ("/ip4/203.0.113.200/tcp/4101", Exit.UNREACHABLE)):
        argv = symmetric.host.argv(sys.executable, "-P", "-m", "shoal.node", "doctor", peer)
        environ = {"SHOAL_HOME": str(symmetric.home.root), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "COLUMNS": "80"}
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, env=environ, check=False)
        print(shown.stdout)
        assert shown.returncode == expected, shown.stdout + shown.stderr


def by_relay(node: LabNode, other: LabNode) -> None:
    """They know nothing of each other but what a person copies."""
    report = examine(node, relayed_door(other))
    assert (report["peer"], report["path"], report["reason_code"]) == (other.name(), "relayed", "relay-symmetric")
    assert (report["verdict"]["code"], report["verdict"]["side"]) == ("relayed-symmetric-here", "ours")
    assert (report["here"]["nat"], report["there"]["nat"]) == ("symmetric", "keeping")
    assert (report["there"]["path"], report["there"]["reason_code"]) == ("relayed", "relay-symmetric")
    steps = [(step["way"], step["code"]) for step in report["steps"] if step["live"]]
    assert steps == [("relay", "ok"), ("meet", "no-place-here")]
    assert ("meet", "no-place-there") in [(step["way"], step["code"]) for step in report["there"]["steps"]]
    assert [step["at"] for step in report["steps"]] == sorted(step["at"] for step in report["steps"])
    is_plausible(report)


def directly(node: LabNode, other: LabNode) -> None:
    """They are connected directly, because the one behind the router has dialled."""
    report = examine(node, other.name()[-6:])
    assert (report["path"], report["reason_code"]) == ("direct", "it-dialled")
    assert (report["verdict"]["code"], report["verdict"]["side"]) == ("direct", "nobody")
    assert (report["there"]["path"], report["there"]["reason_code"]) == ("direct", "dialled")
    assert report["there"]["reachability"] == "nat"
    assert report["there"]["addresses"] == [node.door]
    assert ("came", "ok") in [(step["way"], step["code"]) for step in report["steps"]]
    is_plausible(report)


def meeting(node: LabNode, other: LabNode) -> None:
    """Both keep their ports: they are connected by a relay first, and then meet."""
    report = examine(node, relayed_door(other))
    assert report["path"] in ("direct", "punched")
    assert report["reason_code"] == "met"
    assert report["verdict"]["side"] == "nobody"
    steps = [(step["way"], step["code"]) for step in report["steps"] if step["live"]]
    assert (steps[0], steps[-1]) == (("relay", "ok"), ("meet", "ok"))
    assert report["there"]["reason_code"] == "met"


def relayed_door(node: LabNode) -> str:
    return str(next(each for each in node.status()["addresses"] if "p2p-circuit" in each))


def is_plausible(report: Answer) -> None:
    for key in ("send_rate", "receive_rate"):
        print(
            f"{report['verdict']['code']} {key}: {8 * (report[key] or 0) / 1e6:.1f} Mbit/s, {report['rtt_ms']:.0f} ms"
        )
        assert PLAUSIBLE[0] < (report[key] or 0) < PLAUSIBLE[1], (key, report)
    assert report["rtt_ms"] > 20, "two links of 10 ms there, and two back"


def examine(node: LabNode, peer: str) -> Answer:
    """The report, which is the last that is told."""
    answers = node.ask(lambda client: list(client.examine(peer)))
    assert answers, f"nobody examined {peer}: {node.words()}"
    return dict(answers[-1])

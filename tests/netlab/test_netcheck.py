"""`shoal netcheck` as a person runs it, on real nodes in four places."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.node.base.exits import Exit
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle
from tests.netlab.segments import Host

LONG = 90.0  # seconds
LIMIT = 60.0  # seconds that netcheck may wait: on a quiet machine ten are enough
FAR = Link(delay=0.01)
COMMON = {"NET-IPV6-NONE": "info", "NET-CLOCK-OK": "ok", "NET-MTU-OK": "ok"}
HIDDEN = {"NET-DIAL-NO": "warn", "NET-RELAY-OK": "ok", **COMMON}
NOBODY_ASKED, NO_ANSWER = {"NET-PORTMAP-UNTRIED": "info"}, {"NET-PORTMAP-NONE": "info"}  # routers there speak neither
CODES = {
    "public": {**NOBODY_ASKED, "NET-DIAL-OK": "ok", "NET-NAT-NONE": "ok", "NET-RELAY-LENT": "ok", **COMMON},
    "blocked": {"NET-NAT-FIREWALL": "warn", **NOBODY_ASKED, **HIDDEN},
    "home-drop": {"NET-NAT-KEEPING": "info", **NO_ANSWER, **HIDDEN},
    "home-symmetric": {"NET-NAT-SYMMETRIC": "warn", **NO_ANSWER, **HIDDEN},
}
KINDS = ("public", "firewalled", "keeping", "symmetric")
PATHS = {  # with each of these
    "public": ("direct", "direct", "direct", "direct"),
    "blocked": ("direct", "punched", "punched", "relayed"),
    "home-drop": ("direct", "punched", "punched", "relayed"),
    "home-symmetric": ("direct", "relayed", "relayed", "relayed"),
}
DO = {
    "public": "",
    "blocked": "allow incoming TCP 4101 and 4102 in this machine's firewall",
    "home-drop": "forward TCP 4101 and 4102 to this machine (192.168.1.2)",
    "home-symmetric": "forward TCP 4101 and 4102 to this machine (192.168.1.2)",
}


def test_four_places(lab: Lab, children: Children, tmp_path: Path) -> None:
    relays = [LabNode(lab.internet.host(f"relay{n}", link=FAR), tmp_path / f"relay{n}") for n in range(2)]
    relays[0].start(children)
    relays[1].start(children, bootstrap=(relays[0].door,))
    until(lambda: all(is_public(each) for each in relays), "relays", words(relays), LONG)
    doors = tuple(each.door for each in relays)
    nodes = {place: LabNode(settle(lab.internet, place, place, FAR), tmp_path / place) for place in CODES}
    for each in nodes.values():
        each.start(children, bootstrap=doors)
    until(lambda: all(each.status() for each in nodes.values()), "nodes", words(list(nodes.values())), LONG)
    asked = {place: ask(node, "--json") for place, node in nodes.items()}
    for place, process in asked.items():
        said, _ = process.communicate(timeout=2 * LIMIT)
        check(place, json.loads(said), process.returncode)
    shown, _ = ask(nodes["home-drop"]).communicate(timeout=2 * LIMIT)
    print(f"\n{shown}")
    assert "NET-NAT-KEEPING" in shown
    assert re.search(r"behind a symmetric router +relayed", shown)


def test_a_way_that_swallows_large_packets(lab: Lab, children: Children, tmp_path: Path) -> None:
    server = lab.internet.host("server", link=FAR)
    tunnel = lab.internet.host("tunnel", link=Link(delay=0.01, mtu=1400))
    answer, code = as_guest_of(server, tunnel, f"/ip4/{server.address}/tcp/4101", children, tmp_path)
    assert levels(answer)["NET-MTU-LOST"] == "warn", "one peer is not enough to be sure"
    assert code == answer["verdict"]["exit_code"] == Exit.OK


def test_peers_that_have_ipv6(lab: Lab, children: Children, tmp_path: Path) -> None:
    server = lab.internet.host("server", link=FAR, ipv6="2001:db8::1")
    guest = lab.internet.host("guest", link=FAR, ipv6="2001:db8::2")
    answer, code = as_guest_of(server, guest, "/ip6/2001:db8::1/tcp/4101", children, tmp_path)
    assert levels(answer).items() >= {"NET-DIAL-OK": "ok", "NET-IPV6-OK": "ok", "NET-MTU-OK": "ok"}.items()
    assert code == answer["verdict"]["exit_code"] == Exit.OK


def as_guest_of(
    server: Host, guest: Host, door: str, children: Children, tmp_path: Path
) -> tuple[dict[str, Any], int | None]:
    """The findings of netcheck on a node that knows another at this address, and the exit code."""
    nodes = [LabNode(host, tmp_path / host.label) for host in (server, guest)]
    nodes[0].start(children)
    until(lambda: bool(nodes[0].status()), "the server", words(nodes), LONG)
    nodes[1].start(children, bootstrap=(door,))
    until(lambda: bool(nodes[1].status()), "the guest", words(nodes), LONG)
    process = ask(nodes[1], "--json")
    said, _ = process.communicate(timeout=2 * LIMIT)
    return json.loads(said), process.returncode


def levels(answer: dict[str, Any]) -> dict[str, str]:
    return {each["code"]: each["level"] for each in answer["findings"]}


def check(place: str, answer: dict[str, Any], code: int) -> None:
    print(f"\n{place}: {answer['verdict']['sentence']} {answer['verdict']['action']}")
    assert answer["settled"], answer
    assert levels(answer) == CODES[place]
    assert answer["verdict"]["action"].startswith(DO[place])
    assert bool(answer["verdict"]["action"]) == bool(DO[place])
    assert answer["forecast"] == dict(zip(KINDS, PATHS[place], strict=True))
    assert code == answer["verdict"]["exit_code"] == Exit.OK


def ask(node: LabNode, *options: str) -> subprocess.Popen[str]:
    """The command, on the node's machine."""
    argv = [sys.executable, "-P", "-m", "shoal.node", "netcheck", "--limit", str(LIMIT), *options]
    there = node.host.argv("env", f"SHOAL_HOME={node.home.root}", *argv)
    return subprocess.Popen(there, stdout=subprocess.PIPE, text=True)


def is_public(node: LabNode) -> bool:
    return bool(node.status().get("reachability") == "public")


def words(nodes: list[LabNode]) -> Callable[[], str]:
    return lambda: "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)

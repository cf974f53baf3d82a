"""A real node in each place, and a public one that all know: they connect, and know whether others can dial them."""

from __future__ import annotations

import time
from pathlib import Path

from shoal.node.api.answers import Answer
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.places import PLACES, settle

REACHABILITY = dict.fromkeys(PLACES, "nat") | {"public": "public"}


def test_a_node_in_each_place_is_connected(lab: Lab, children: Children, tmp_path: Path) -> None:
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    begin = time.monotonic()
    nodes = {place: LabNode(settle(lab.internet, place, place), tmp_path / place) for place in PLACES}
    for node in nodes.values():
        node.start(children, bootstrap=(server.door,))
    since: dict[str, float] = {}  # seconds until a node has known what it is

    def all_know() -> bool:
        for place, node in nodes.items():
            if place not in since and is_settled(node.status(), REACHABILITY[place]):
                since[place] = time.monotonic() - begin
        return len(since) == len(PLACES)

    def words() -> str:
        return "\n".join(f"{place}: {node.status()}\n{node.words()}" for place, node in nodes.items())

    until(all_know, "all to be connected, and to know whether others can dial them", words)
    print("", *(f"{place:<16}CONNECTED, {REACHABILITY[place]:<8}{since[place]:.1f} s" for place in PLACES), sep="\n")


def is_settled(status: Answer, reachability: str) -> bool:
    return (status.get("state"), status.get("reachability")) == ("CONNECTED", reachability)

"""A real node in each place, and a public one that all know: whom they reach, and what they think of themselves."""

from __future__ import annotations

from pathlib import Path

from shoal.node.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.places import PLACES, settle


def test_a_node_in_each_place_is_connected(lab: Lab, children: Children, tmp_path: Path) -> None:
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    nodes = {}
    for place in PLACES:
        node = LabNode(settle(lab.internet, place, place), tmp_path / place)
        nodes[place] = node.start(children, bootstrap=(server.door,))

    def words() -> str:
        return "\n".join(f"{place}: {node.status()}\n{node.words()}" for place, node in nodes.items())

    def verdicts() -> dict[str, str]:
        return {place: str(node.status().get("reachability")) for place, node in nodes.items()}

    until(lambda: all(node.state() == "CONNECTED" for node in nodes.values()), "all to be connected", words)
    until(lambda: "None" not in verdicts().values(), "all to know what they are", words)
    print("", *(f"{place:<16}{verdict}" for place, verdict in verdicts().items()), sep="\n")

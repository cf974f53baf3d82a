"""Nodes that cannot be dialled, connected by relays that they find without configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.dht.link import parse_link
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle

LONG = 120.0  # seconds


WAYS = {
    ("home-drop", "home-double"): "punched",
    ("home-symmetric", "home-symmetric"): "relayed",
}


@pytest.mark.slow
@pytest.mark.parametrize("places", WAYS)
def test_two_that_cannot_be_dialled_train_together(
    lab: Lab, children: Children, tmp_path: Path, places: tuple[str, str]
) -> None:
    """All they know is a public node and a link; they find relays, and each other, and the best way there is."""
    relays = [LabNode(lab.internet.host(f"relay{number}"), tmp_path / f"relay{number}") for number in range(3)]
    relays[0].start(children)
    for relay in relays[1:]:
        relay.start(children, bootstrap=(relays[0].door,))
    until(lambda: all(is_public(each) for each in relays), "relays", _words(relays), LONG)
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    founder, joiner = (
        LabNode(settle(lab.internet, each, f"at{n}"), tmp_path / f"{n}") for n, each in enumerate(places)
    )
    founder.start(children, bootstrap=(relays[0].door,), create=manifest)
    until(lambda: has_relays(founder), "reservations", _words([founder]), LONG)
    [row] = founder.status()["runs"]
    link = founder.ask(lambda client: client.run_link(row["run"]))["link"]
    assert any("p2p-circuit" in address for address in parse_link(link).addresses)
    joiner.start(children, join=(link,))
    members = [founder, joiner]
    until(lambda: all(rounds(each) >= 2 for each in members), "two rounds", _words(members), LONG)
    until(lambda: path(founder, joiner) == WAYS[places], "the best way", _words(members), LONG)
    routers = [each.status()["nat"] for each in members]
    print(f"\n{' and '.join(places)}: {path(founder, joiner)}; routers: {routers}")
    before = rounds(founder)
    until(lambda: all(rounds(each) >= before + 2 for each in members), "two rounds more", _words(members), LONG)


def path(node: LabNode, other: LabNode) -> str:
    """How two are connected."""
    return next(
        (row["path"] for row in node.ask(lambda client: client.peers()) or () if row["peer"] == other.name()), ""
    )


def is_public(node: LabNode) -> bool:
    return node.status().get("reachability") == "public"


def has_relays(node: LabNode) -> bool:
    return len(node.status().get("relays", ())) >= 2 and bool(node.status()["runs"])


def rounds(node: LabNode) -> int:
    """How many rounds its run has committed."""
    return max((int(row.get("round") or 0) for row in node.status().get("runs", ())), default=0)


def _words(nodes: list[LabNode]) -> Callable[[], str]:
    return lambda: "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)

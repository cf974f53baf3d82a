"""A machine with many bridges and a VPN as default route: its neighbours on the real network find it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from shoal.dht.link import parse_link
from shoal.node.api.client import Client
from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.internet import open_tun
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode

BRIDGES = 9
LAN = "10.77.1.1"


@pytest.mark.parametrize("mdns", [True, False])
def test_the_lans_address_is_told_shown_and_in_the_link(
    request: pytest.FixtureRequest, lab: Lab, children: Children, tmp_path: Path, mdns: bool
) -> None:
    segment = lab.segment("home")
    a, b = nodes = [LabNode(lab.machine(name), tmp_path / name) for name in "ab"]
    request.addfinalizer(partial(os.close, a.host.on(open_tun)))  # the VPN, which stays while it is open
    a.host.ip("address add 10.8.0.2/24 dev wan", "link set wan up", "route add default via 10.8.0.1 dev wan")
    for number in range(BRIDGES):
        a.host.ip(
            f"link add br{number} type bridge",
            f"address add 172.{17 + number}.0.1/16 dev br{number}",
            f"link set br{number} up",
        )
    for number, node in enumerate(nodes, 1):
        segment.plug(node.host, f"10.77.1.{number}/24")  # the last of the interfaces

    def words() -> str:
        return a.words() + b.words()

    a.start(children, mdns=mdns)
    until(a.status, "the first", words)
    status = a.status()
    assert [each.split("/")[2] for each in status["addresses"][:2]] == ["10.8.0.2", LAN]
    assert len(status["untold_addresses"]) == BRIDGES + 2 - 6
    until(lambda: "others are told 6 addresses of this node, and not " in a.log.read_text(), "a word of it", a.words)
    a.ask(lambda client: client.create_run(MANIFEST, False))
    link = a.ask(lambda client: client.run_link("tiny"))
    places = [f"/ip4/{host}/tcp/4101" for host in ("10.8.0.2", LAN)]
    assert (parse_link(link["link"]).addresses, link["untold"]) == (tuple(places), []), "bridges lead to nobody"
    b.start(children, mdns=mdns)
    until(b.status, "the neighbour", words)
    if mdns:
        until(lambda: b.peers() == {a.name()}, "the two to meet by mDNS", words)
    else:
        b.host.on(lambda: Client(b.home).join_run(link["link"], False))
        until(lambda: b.peers() == {a.name()}, "the two to meet by the link", words)

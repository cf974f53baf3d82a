"""IPv6 beside IPv4: if it is broken or firewalled, it costs a moment and prevents nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.protocol.net.peers.dialing import STAGGER
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.gates import KEEPS_PORTS
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.segments import Host
from tests.netlab.test_relayed import has_relays, is_public, path

SERVER6, LAPTOP6 = "2001:db8::1", "2001:db8::2"
FAR = Link(delay=0.01)
BUSY = 1.0  # seconds that a loaded machine may take longer than a quiet one; the time limit for an address is ten
LONG = 120.0  # seconds


def connecting(host: Host, *addresses: str) -> float:
    """Seconds until somebody on that machine is connected with who is at these addresses, the first of which it tries
    first."""

    async def connect() -> float:
        network = Network(Identity.generate(), port=0)
        await network.start()
        try:
            peer = addresses[0].rpartition("/")[2]
            network.remember(peer, addresses[1:])  # type: ignore[arg-type]
            begin = time.monotonic()
            await network.connect(addresses[0])
            return time.monotonic() - begin
        finally:
            await network.close()

    return host.on(lambda: asyncio.run(connect()))


def test_a_black_hole_costs_the_head_start_and_no_more(lab: Lab, children: Children, tmp_path: Path) -> None:
    server = LabNode(lab.internet.host("server", link=FAR, ipv6=SERVER6), tmp_path / "server").start(children)
    until(lambda: bool(server.status()), "the server", server.words)
    four, six = (f"/ip{v}/{host}/tcp/4101/p2p/{server.name()}" for v, host in ((4, server.host.address), (6, SERVER6)))
    plain, good, holed = (lab.internet.host(label, link=FAR) for label in ("plain", "good", "holed"))
    for host, address in ((good, LAPTOP6), (holed, "2001:db8::bad")):
        host.ip(f"address add {address}/128 dev wan nodad", "route add ::/0 dev wan")
    lab.internet.also(good, LAPTOP6)  # and nobody knows the way to the other's
    took = {
        "IPv4 alone": connecting(plain, four),
        "no IPv6 here": connecting(plain, six, four),
        "IPv6 alone": connecting(good, six),
        "both": connecting(good, six, four),
        "IPv6 a black hole": connecting(holed, six, four),
    }
    print("", *(f"{name:<20}{1000 * seconds:>6.0f} ms" for name, seconds in took.items()), sep="\n")
    assert took["IPv6 a black hole"] >= STAGGER
    assert took["IPv6 a black hole"] < took["IPv4 alone"] + STAGGER + BUSY
    assert took["no IPv6 here"] < took["IPv4 alone"] + BUSY


@pytest.mark.slow
def test_two_homes_whose_ipv6_lets_nobody_in_come_together(lab: Lab, children: Children, tmp_path: Path) -> None:
    """Each has a public address of IPv6, which a firewall shuts; so what is direct is so by punching, and IPv4."""
    relays = [
        LabNode(lab.internet.host(f"relay{number}", ipv6=f"2001:db8::{number + 1}"), tmp_path / f"relay{number}")
        for number in range(2)
    ]
    relays[0].start(children)
    relays[1].start(children, bootstrap=(relays[0].door,))
    until(lambda: all(map(is_public, relays)), "relays", _words(relays), LONG)
    founder, joiner = (at_home(lab, label, number, tmp_path) for number, label in enumerate(("founder", "joiner")))
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    founder.start(children, bootstrap=(relays[0].door,), create=manifest, train=False)
    until(lambda: has_relays(founder), "reservations", _words([founder]), LONG)
    assert any("/ip6/2001:db8:" in each for each in founder.status()["addresses"])
    until(lambda: founder.status()["reachability"] == "nat", "its word", _words([founder]), LONG)
    [row] = founder.status()["runs"]
    link = founder.ask(lambda client: client.run_link(row["run"]))["link"]
    joiner.start(children, join=(link,), train=False)
    begin = time.monotonic()
    until(
        lambda: bool(joiner.status()) and path(founder, joiner) == "punched", "the two", _words([founder, joiner]), LONG
    )
    print(f"\npunched {time.monotonic() - begin:.1f} s after the joiner's start")


def at_home(lab: Lab, label: str, number: int, folder: Path) -> LabNode:
    router = lab.internet.router(f"{label}-router", KEEPS_PORTS, FAR)
    host = router.host(label)
    lab.internet.also(router, router.give_ipv6(host, f"2001:db8:{number + 1}"))
    return LabNode(host, folder / label)


def _words(nodes: list[LabNode]) -> Callable[[], str]:
    return lambda: "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)

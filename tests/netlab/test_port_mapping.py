"""Nodes behind routers that map ports when asked: real miniupnpd, real nodes, and what the routers hold in the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.nodes import until
from tests.netlab.gates import KEEPS_PORTS
from tests.netlab.lab import Lab
from tests.netlab.mappers import ADDRESSES, Mapper
from tests.netlab.nodes import LabNode
from tests.netlab.places import CARRIER, MAPPING, settle

PROTOCOLS = ("upnp", "nat-pmp")
TWIN = (pytest.mark.slow, pytest.mark.patient)  # of a test that runs with the tiers


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_is_public_by_its_mapping_which_ends_with_it(
    lab: Lab, children: Children, tmp_path: Path, protocol: str
) -> None:
    router = lab.internet.router("home", KEEPS_PORTS, address=next(ADDRESSES))
    mapper = Mapper(router, protocol)
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    laptop = LabNode(router.host("laptop"), tmp_path / "laptop").start(children, bootstrap=(server.door,))
    until(lambda: is_public(laptop), "the node to be public", words(server, laptop))
    until(lambda: mapper.mappings() == both(laptop), "both ports to be mapped", words(laptop))
    assert mapping(laptop) == {
        "protocol": protocol,
        "external": f"{router.address}:4101",
        "error": None,
        "behind_another_nat": False,
        "pending": False,
    }
    assert f"/ip4/{router.address}/tcp/4101/p2p/{laptop.name()}" in laptop.status()["addresses"]

    door = f"/ip4/{router.address}/tcp/4101"
    stranger = LabNode(lab.internet.host("stranger"), tmp_path / "stranger").start(children, bootstrap=(door,))
    until(lambda: laptop.name() in stranger.peers(), "a stranger to dial it", words(laptop, stranger))

    assert laptop.child is not None
    laptop.child.process.send_signal(signal.SIGTERM)
    until(lambda: not mapper.mappings(), "the mapping to be removed", words(laptop))


@pytest.mark.parametrize("protocol", [PROTOCOLS[0], pytest.param(PROTOCOLS[1], marks=TWIN)])
def test_behind_another_nat_a_mapping_is_of_no_use_and_the_node_says_so(
    lab: Lab, children: Children, tmp_path: Path, protocol: str
) -> None:
    router = lab.internet.router("carrier", KEEPS_PORTS, network=CARRIER).router("home", KEEPS_PORTS)
    Mapper(router, protocol)
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    laptop = LabNode(router.host("laptop"), tmp_path / "laptop").start(children, bootstrap=(server.door,))
    until(lambda: mapping(laptop).get("behind_another_nat"), "the node to know", words(server, laptop))
    until(lambda: laptop.status().get("reachability") == "nat", "the verdict", words(server, laptop))
    assert "of its own" in mapping(laptop)["error"]
    until(lambda: "behind-another-nat" in laptop.log.read_text(), "the log to say so", words(laptop))
    assert laptop.log.read_text().count("behind-another-nat") == 1


@pytest.mark.slow
@pytest.mark.patient
def test_a_router_whose_outside_others_do_not_see_is_behind_another_nat(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    """It takes itself for something better than it is; the relays know."""
    router = lab.internet.router("carrier", KEEPS_PORTS, network=CARRIER).router("home", KEEPS_PORTS)
    claimed = next(ADDRESSES)
    Mapper(router, "nat-pmp", claims=claimed)
    servers = [LabNode(lab.internet.host(f"server{number}"), tmp_path / f"server{number}") for number in range(2)]
    servers[0].start(children)
    servers[1].start(children, bootstrap=(servers[0].door,))
    until(lambda: all(map(is_public, servers)), "relays", words(*servers))
    laptop = LabNode(router.host("laptop"), tmp_path / "laptop").start(children, bootstrap=(servers[0].door,))
    until(lambda: mapping(laptop).get("behind_another_nat"), "the node to know", words(*servers, laptop))
    assert claimed in mapping(laptop)["error"]
    assert router.public in mapping(laptop)["error"]
    until(
        lambda: not any(claimed in each for each in laptop.status().get("addresses", [claimed])),
        "the address to be named no more",
        words(laptop),
    )
    until(lambda: laptop.status().get("reachability") == "nat", "the verdict", words(*servers, laptop))


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lease_is_renewed_before_it_ends(lab: Lab, children: Children, tmp_path: Path, protocol: str) -> None:
    lifetime = 20
    router = lab.internet.router("home", KEEPS_PORTS, address=next(ADDRESSES))
    mapper = Mapper(router, protocol, lifetime=lifetime)
    laptop = LabNode(router.host("laptop"), tmp_path / "laptop").start(children)
    until(lambda: mapper.mappings(), "a mapping", words(laptop))
    over, held = time.monotonic() + 3 * lifetime, True

    def is_over() -> bool:
        nonlocal held
        held = held and bool(mapper.mappings())
        return time.monotonic() > over or not held

    until(is_over, "three leases to end", words(laptop))
    assert held


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_router_that_was_restarted_or_has_forgotten_is_asked_anew(
    lab: Lab, children: Children, tmp_path: Path, protocol: str
) -> None:
    router = lab.internet.router("home", KEEPS_PORTS, address=next(ADDRESSES))
    mapper = Mapper(router, protocol)
    laptop = LabNode(router.host("laptop"), tmp_path / "laptop").start(children)
    until(lambda: mapper.mappings(), "a mapping", words(laptop))
    mapper.stop()
    assert not mapper.mappings()
    mapper.start()
    begin = time.monotonic()
    until(lambda: mapper.mappings(), "the mapping to be back", words(laptop))
    print(f"\n{protocol}: mapped again {time.monotonic() - begin:.1f} s after the router was back")


@pytest.mark.slow
def test_a_node_that_was_told_not_to_asks_nobody(lab: Lab, children: Children, tmp_path: Path) -> None:
    router = lab.internet.router("home", KEEPS_PORTS, address=next(ADDRESSES))
    mapper = Mapper(router, "nat-pmp")
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    home = [LabNode(router.host(label), tmp_path / label) for label in ("asks", "asks-not")]
    for node in home:
        node.start(children, bootstrap=(server.door,), port_mapping=node is home[0])
    until(lambda: is_public(home[0]), "the one", words(server, *home))
    until(lambda: home[1].status().get("reachability") == "nat", "the other", words(server, *home))
    until(lambda: mapper.mappings() == both(home[0]), "both ports to be mapped", words(home[0]))
    assert home[1].status()["port_mapping"] is None


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("place", MAPPING)
def test_in_such_a_place_a_node_is_public(lab: Lab, children: Children, tmp_path: Path, place: str) -> None:
    server = LabNode(lab.internet.host("server"), tmp_path / "server").start(children)
    node = LabNode(settle(lab.internet, place, "a"), tmp_path / "a").start(children, bootstrap=(server.door,))
    until(lambda: is_public(node), "the node to be public", words(server, node))


def is_public(node: LabNode) -> bool:
    return node.status().get("reachability") == "public"


def both(node: LabNode) -> dict[int, str]:
    """The pair of a node's ports."""
    return {port: f"{node.host.address}:{port}" for port in (4101, 4102)}


def mapping(node: LabNode) -> dict[str, Any]:
    return dict(node.status().get("port_mapping") or {})


def words(*nodes: LabNode) -> Callable[[], str]:
    return lambda: "\n".join(f"{each.host} {each.status()}\n{each.words()}" for each in nodes)

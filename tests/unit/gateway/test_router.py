"""Which router is ours: that of a private network to which we are attached; and what it should forward."""

from __future__ import annotations

import sys
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Interface

import pytest

from shoal.node.peers.gateway.router import (
    HomeNetwork,
    default_gateway,
    find_home_network,
    home_network,
    port_in,
    ports_to_forward,
)


def hexed(address: str) -> str:
    return f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}"


def row(destination: str, gateway: str, flags: int = 3, metric: int = 0, mask: str = "0.0.0.0") -> str:
    return f"eth0\t{hexed(destination)}\t{hexed(gateway)}\t{flags:04X}\t0\t0\t{metric}\t{hexed(mask)}\t0\t0\t0"


HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
LAN = row("192.168.1.0", "0.0.0.0", 1, mask="255.255.255.0")


def table(*rows: str) -> str:
    return "\n".join([HEAD, LAN, *rows]) + "\n"


def test_the_default_route_with_the_least_metric_leads_out() -> None:
    routes = table(row("0.0.0.0", "192.168.1.254", metric=600), row("0.0.0.0", "192.168.1.1", metric=100))
    assert default_gateway(routes) == IPv4Address("192.168.1.1")


@pytest.mark.parametrize("routes", ["", HEAD, table(), table(row("0.0.0.0", "0.0.0.0", 1)), table("x y z"), "\n\n"])
def test_where_none_is_told_there_is_none(routes: str) -> None:
    assert default_gateway(routes) is None


OURS = IPv4Interface("192.168.1.7/24")


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        ("192.168.1.1", "192.168.1.1"),
        ("10.0.0.1", None),  # not on our network
        ("192.168.1.7", None),  # ourselves
    ],
)
def test_the_gateway_counts_if_it_is_near(gateway: str, expected: str | None) -> None:
    found = find_home_network("192.168.1.7", [IPv6Interface("fd00::1/64"), OURS], table(row("0.0.0.0", gateway)))
    assert found == HomeNetwork("192.168.1.7", IPv4Network("192.168.1.0/24"), expected)


@pytest.mark.parametrize("here", ["203.0.113.5", "8.8.8.8", "127.0.0.1", "169.254.3.4"])
def test_who_has_no_private_address_has_no_router_to_ask(here: str) -> None:
    assert find_home_network(here, [IPv4Interface(f"{here}/24")], table(row("0.0.0.0", "192.168.1.1"))) is None


def test_behind_a_carrier_there_may_be_one() -> None:
    routes = table(row("0.0.0.0", "100.64.0.1"))
    found = find_home_network("100.64.0.9", [IPv4Interface("100.64.0.9/10")], routes)
    assert found is not None
    assert found.gateway == "100.64.0.1"


def test_an_address_that_is_not_ours_is_no_place() -> None:
    assert find_home_network("192.168.1.8", [OURS], table()) is None
    assert find_home_network("", [OURS], table()) is None


def test_this_machine_can_be_asked() -> None:
    assert home_network("127.0.0.1") is None
    found = home_network("0.0.0.0")
    assert found is None or found.here


def test_both_ports_are_named() -> None:
    assert ports_to_forward() == "TCP 4101 and 4102"
    assert ports_to_forward(4201) == "TCP 4201 and 4202"


def test_a_port_is_that_of_the_first_address_that_has_one() -> None:
    assert port_in(("/dns4/name", "/ip4/192.168.1.2/tcp/4201", "/ip4/127.0.0.1/tcp/4301")) == 4201
    assert port_in(()) == 4101

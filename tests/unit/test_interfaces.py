"""Which of our addresses others are likeliest to reach, and what is kept of a list that is too long."""

from __future__ import annotations

import logging
import random
from ipaddress import ip_interface
from pathlib import Path

import ifaddr
import pytest

from shoal.protocol.base.multiaddrs import kind_of, shortlist
from shoal.protocol.net.system import addresses
from shoal.protocol.net.system import interfaces as module
from shoal.protocol.net.system.addresses import FRESH, OwnAddresses, advertised, own_hosts
from shoal.protocol.net.system.interfaces import (
    RUNNING,
    InterfaceKind,
    NetworkInterface,
    interfaces,
    own_networks,
    ranked,
)

BRIDGES = [NetworkInterface(f"br{i}", (ip_interface(f"172.{17 + i}.0.1/16"),), InterfaceKind.NOWHERE) for i in range(7)]
VPN = NetworkInterface("tun0", (ip_interface("10.8.0.2/24"),), InterfaceKind.TUNNEL)
CONTAINERS = NetworkInterface("docker0", (ip_interface("172.16.0.1/16"),), InterfaceKind.INSIDE)
LAN = NetworkInterface(
    "eth0", tuple(map(ip_interface, ("192.168.1.5/24", "192.168.1.6/24", "fd00::5/64", "fd00::6/64")))
)


def test_the_way_out_then_networks_then_tunnels_then_what_leads_to_nobody() -> None:
    attached = [VPN, *BRIDGES, CONTAINERS, LAN]
    first = ["192.168.1.5", "fd00::5", "10.8.0.2", "192.168.1.6", "fd00::6", "172.16.0.1"]
    bridges = [f"172.{17 + i}.0.1" for i in range(7)]
    assert ranked(attached) == [*first, *bridges]
    by_vpn = ranked(attached, ["10.8.0.2"])
    assert by_vpn[:3] == ["10.8.0.2", "192.168.1.5", "fd00::5"]
    shuffled = list(attached)
    random.Random(7).shuffle(shuffled)
    assert ranked(shuffled, ["10.8.0.2"])[:6] == by_vpn[:6], "whatever the system's order is"


def test_networks_inside_this_machine_are_those_that_no_other_interface_is_in() -> None:
    found = own_networks([LAN, VPN, CONTAINERS, *BRIDGES[:2]])
    assert [str(each) for each in found.inside] == ["172.16.0.0/16", "172.17.0.0/16", "172.18.0.0/16"]
    unplugged = NetworkInterface("eth1", (ip_interface("192.168.1.9/24"),), InterfaceKind.NOWHERE)
    assert [str(each) for each in dict.fromkeys(found.outside)] == ["192.168.1.0/24", "fd00::/64", "10.8.0.0/24"]
    assert own_networks([LAN, unplugged]).inside == (), "the other card is in the same network, and plugged in"
    assert own_networks([CONTAINERS], ["172.16.0.1"]).inside == (), "by which the internet is reached"


def test_of_each_kind_the_best_is_kept_and_the_order_too() -> None:
    lan = [f"/ip4/192.168.{i}.1/tcp/1" for i in range(9)]
    public, six, relayed = "/ip4/8.8.8.8/tcp/1", "/ip6/2a00::1/tcp/1", "/ip4/8.8.4.4/tcp/1/p2p/R/p2p-circuit"
    assert shortlist([*lan, public, six, relayed], 5) == (*lan[:2], public, six, relayed)
    assert shortlist([public, public, *lan], 2) == (public, lan[0])
    assert shortlist([*lan, public], 1) == (lan[0],)
    assert shortlist([], 3) == ()
    assert len({kind_of(each) for each in (lan[0], public, six, relayed, "/ip6/fd00::1/tcp/1", "/dns4/a/tcp/1")}) == 6


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A VPN as the way out, seven bridges that nothing is plugged into, one of containers, and the LAN's card last."""
    named = {"tun0": ["10.8.0.2"], **{f"br{i}": [f"172.{17 + i}.0.1"] for i in range(7)}}
    named |= {"br-containers": ["172.30.0.1"], "lan0": ["192.168.7.1"], "eth0": ["192.168.1.5"]}
    adapters = [ifaddr.Adapter(name, name, [ifaddr.IP(ip, 24, name) for ip in ips]) for name, ips in named.items()]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    monkeypatch.setattr(addresses, "_way_out", lambda route: "10.8.0.2" if route is addresses.ROUTES[0] else "")
    monkeypatch.setattr(module, "SYSFS", tmp_path)
    monkeypatch.setattr(module, "_flags", lambda name: RUNNING | module.MULTICAST)
    for bridge, ports in {**{f"br{i}": [] for i in range(7)}, "br-containers": ["veth1"], "lan0": ["eth1"]}.items():
        (tmp_path / bridge / "brif").mkdir(parents=True)
        for port in ports:
            (tmp_path / bridge / "brif" / port).touch()
    for port, where in {"veth1": "virtual/net/veth1", "eth1": "pci0/net/eth1"}.items():
        (tmp_path / "devices" / where).mkdir(parents=True)
        (tmp_path / "devices" / where / "uevent").write_text(f"INTERFACE={port}\n")
        (tmp_path / port).symlink_to(tmp_path / "devices" / where)
    return tmp_path


def test_what_the_system_says_of_interfaces(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {each.name: each.kind for each in interfaces()}
    assert found == {
        "tun0": InterfaceKind.TUNNEL,
        **{f"br{i}": InterfaceKind.NOWHERE for i in range(7)},
        "br-containers": InterfaceKind.INSIDE,
        "lan0": InterfaceKind.NETWORK,
        "eth0": InterfaceKind.NETWORK,
    }
    assert advertised(own_hosts())[:3] == ["10.8.0.2", "192.168.7.1", "192.168.1.5"]
    inside = [f"172.{number}.0.0/24" for number in (*range(17, 24), 30)]
    assert [str(each) for each in addresses.found_networks().inside] == inside
    monkeypatch.setattr(module, "_flags", lambda name: 0)
    assert {each.kind for each in interfaces()} == {InterfaceKind.NOWHERE}, "without a carrier"
    assert not any(each.multicast for each in interfaces())
    monkeypatch.setattr(module, "_flags", lambda name: None)
    assert {each.kind for each in interfaces()} == set(InterfaceKind), "and where only files tell"


def test_what_others_are_not_told_is_said_once(machine: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    whereabouts = OwnAddresses(lambda: now)
    told = whereabouts.of(["/ip4/0.0.0.0/tcp/7"])
    assert len(told) == addresses.MAX_OWN + 1
    now = FRESH
    assert whereabouts.of(["/ip4/0.0.0.0/tcp/7"]) == told
    assert len(caplog.records) == 2
    assert "links to runs do not name these addresses" in caplog.text
    assert "no machine at all: 172.30.0.1, 172.17.0.1, " in caplog.text
    assert "others are told 6 addresses of this node, and not /ip4/172.19.0.1/tcp/7, " in caplog.text
    every = whereabouts.everywhere(["/ip4/0.0.0.0/tcp/7"])
    assert every == (*told[:-1], *whereabouts.untold)
    assert len(every) == 11
    assert whereabouts.everywhere(["/ip4/10.0.0.1/tcp/7"]) == ("/ip4/10.0.0.1/tcp/7",)
    assert whereabouts.untold == ()

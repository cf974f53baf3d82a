"""Host names in addresses are looked up as the system does it, and our own addresses are those of all interfaces."""

from __future__ import annotations

import socket

import ifaddr
import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.system import addresses
from shoal.protocol.net.system.addresses import (
    FRESH,
    OwnAddresses,
    advertised,
    interface_addresses,
    is_loopback,
    listening,
    own_hosts,
    reachable_at,
    resolve,
)


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["/ip4/192.0.2.7/tcp/4101", "/ip6/::1/tcp/4101", "", "nonsense"])
async def test_what_has_no_name_stays_as_it_is(address: str) -> None:
    assert await resolve(address) == (address,)


@pytest.mark.asyncio
async def test_each_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: object, family: int = 0, *_: object) -> list[tuple[object, ...]]:
        assert (host, family) == ("bootstrap", socket.AF_UNSPEC)
        found = [(socket.AF_INET, "192.0.2.7"), (socket.AF_INET, "192.0.2.7"), (socket.AF_INET6, "2001:db8::7")]
        return [(kind, socket.SOCK_STREAM, 6, "", (where, 0)) for kind, where in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    found = await resolve("/dns/bootstrap/tcp/4101")
    assert found == ("/ip4/192.0.2.7/tcp/4101", "/ip6/2001:db8::7/tcp/4101")


@pytest.mark.asyncio
async def test_the_name_of_this_machine() -> None:
    assert await resolve("/dns4/localhost/tcp/4101") == ("/ip4/127.0.0.1/tcp/4101",)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["nobody.invalid", "a" * 64, ""])
async def test_an_unknown_name_is_the_networks_fault(name: str) -> None:
    with pytest.raises(TransportError, match="cannot be looked up"):
        await resolve(f"/dns4/{name}/tcp/4101")


# -- our own addresses --------------------------------------------------------------------------------------

ADAPTERS = {
    "lo": [ifaddr.IP("127.0.0.1", 8, "lo"), ifaddr.IP(("::1", 0, 0), 128, "lo")],
    "eth0": [ifaddr.IP("10.0.0.7", 24, "eth0"), ifaddr.IP(("fe80::7", 0, 2), 64, "eth0")],
    "wlan0": [ifaddr.IP("192.168.1.7", 24, "wlan0"), ifaddr.IP(("2001:db8::7", 0, 0), 64, "wlan0")],
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks, and the way to the internet by the second."""
    adapters = [ifaddr.Adapter(name, name, ips) for name, ips in ADAPTERS.items()]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    ways = {socket.AF_INET: "192.168.1.7", socket.AF_INET6: ""}
    monkeypatch.setattr(addresses, "_way_out", lambda route: ways[route[0]])


def test_our_addresses_are_those_of_all_interfaces(machine: None) -> None:
    assert advertised(own_hosts()) == ["192.168.1.7", "10.0.0.7", "2001:db8::7", "127.0.0.1"]
    assert [str(each.network) for each in interface_addresses()] == ["10.0.0.0/24", "192.168.1.0/24", "2001:db8::/64"]


def test_without_a_way_out_there_are_our_networks_still(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_way_out", lambda route: "")
    assert advertised(own_hosts()) == ["10.0.0.7", "192.168.1.7", "2001:db8::7", "127.0.0.1"]


def test_a_machine_full_of_bridges_names_a_few_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    bridges = [ifaddr.Adapter(f"br{i}", f"br{i}", [ifaddr.IP(f"172.16.{i}.1", 24, "")]) for i in range(99)]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: bridges)
    assert len(advertised(own_hosts())) == addresses.MAX_OWN + 1


@pytest.mark.parametrize("error", [OSError("no"), AssertionError("a tunnel without a netmask")])
@pytest.mark.parametrize("way_out", ["", "10.0.0.7"])
def test_where_the_system_does_not_tell_the_way_out_is_known(
    monkeypatch: pytest.MonkeyPatch, error: Exception, way_out: str
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(ifaddr, "get_adapters", refuse)
    monkeypatch.setattr(addresses, "_way_out", lambda route: way_out if route[0] is socket.AF_INET else "")
    assert advertised(own_hosts()) == [*([way_out] if way_out else []), "127.0.0.1"]
    assert interface_addresses() == []


def test_everywhere_is_spelled_out_with_the_loopback_last(machine: None) -> None:
    assert reachable_at(["/ip4/0.0.0.0/tcp/7", "/ip6/::/tcp/7"], own_hosts()) == (
        "/ip4/192.168.1.7/tcp/7",
        "/ip4/10.0.0.7/tcp/7",
        "/ip6/2001:db8::7/tcp/7",
        "/ip4/127.0.0.1/tcp/7",
    )
    assert reachable_at(["/ip4/10.0.0.7/tcp/7"], own_hosts()) == ("/ip4/10.0.0.7/tcp/7",)


def test_a_machine_of_ipv6_alone_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifaddr, "get_adapters", list)
    monkeypatch.setattr(addresses, "_way_out", lambda route: "")
    assert reachable_at(["/ip6/::/tcp/7"], own_hosts()) == ("/ip6/::1/tcp/7",)


@pytest.mark.parametrize("ipv6", [True, False])
def test_everywhere_is_both_families_where_there_are_both(monkeypatch: pytest.MonkeyPatch, ipv6: bool) -> None:
    monkeypatch.setattr(addresses, "has_ipv6", lambda: ipv6)
    both = ("/ip4/0.0.0.0/tcp/7", "/ip6/::/tcp/7")
    assert listening("0.0.0.0", 7) == (both if ipv6 else both[:1])
    assert listening("127.0.0.1", 7) == ("/ip4/127.0.0.1/tcp/7",)
    assert listening("::1", 7) == ("/ip6/::1/tcp/7",)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("/ip4/127.0.0.1/tcp/1", True),
        ("/ip6/::1/tcp/1", True),
        ("/dns4/localhost/tcp/1", True),
        ("/ip4/10.0.0.1/tcp/1", False),
        ("/dns4/example.org/tcp/1", False),
        ("", False),
    ],
)
def test_which_addresses_lead_to_ourselves(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_what_was_found_is_believed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the system is asked once each time."""
    asked: list[str] = []

    def own_hosts() -> list[str]:
        asked.append(f"192.0.2.{len(asked) + 1}")
        return asked[-1:]

    monkeypatch.setattr(addresses, "own_hosts", own_hosts)
    now, one, other = 0.0, "/ip4/0.0.0.0/tcp/1", "/ip4/0.0.0.0/tcp/2"
    whereabouts = OwnAddresses(lambda: now)
    assert whereabouts.of([one])[0] == whereabouts.of((one,))[0] == "/ip4/192.0.2.1/tcp/1"
    assert whereabouts.of([other])[0] == "/ip4/192.0.2.2/tcp/2", "where we listen has changed"
    now = FRESH
    assert whereabouts.of([other])[0] == "/ip4/192.0.2.3/tcp/2"

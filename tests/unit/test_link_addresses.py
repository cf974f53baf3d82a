"""Which addresses are put into a link: the widest of each peer, and none that leads to one machine only."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from shoal.dht.link import format_link, left_out, parse_link
from shoal.dht.link_addresses import Reach, ranked, reach
from shoal.protocol.base.ids import RunId
from shoal.protocol.base.multiaddrs import OwnNetworks
from shoal.protocol.net.system.identity import Identity

RUN = RunId(bytes(range(32)))
ANNA, BERT = (Identity.generate().peer for _ in range(2))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("/ip4/8.8.8.8", Reach.INTERNET),
        ("/ip4/203.0.113.9", Reach.INTERNET),
        ("/ip6/2001:db8::1", Reach.INTERNET),
        ("/dns4/example.org", Reach.INTERNET),
        ("/ip4/192.168.1.7", Reach.LAN),
        ("/ip4/100.64.0.1", Reach.LAN),
        ("/ip6/fe80::1", Reach.LAN),
        ("/dns4/printer.local", Reach.LAN),
        ("/ip4/172.31.0.7", Reach.LAN),  # of many clouds
        ("/ip4/172.18.0.2", Reach.LAN),  # perhaps of a container, and all that a swarm of containers has
        ("/ip4/172.16.0.1", Reach.LAN),
        ("/ip4/172.17.0.2", Reach.CONTAINERS),
        ("/ip4/127.0.0.1", Reach.LOOPBACK),
        ("/ip4/0.0.0.0", Reach.LOOPBACK),
        ("/ip6/::1", Reach.LOOPBACK),
        ("/dns/localhost", Reach.LOOPBACK),
        ("/ip4/172.17.0.1", Reach.BRIDGE),
        ("/ip4/172.25.0.1", Reach.BRIDGE),
        ("/ip4/10.88.0.1", Reach.BRIDGE),
        ("/ip4/10.88.0.9", Reach.BRIDGE),  # a container on this machine
        ("/ip6/fd00:88::1", Reach.BRIDGE),
    ],
)
def test_from_where_an_address_can_be_dialled(host: str, expected: Reach) -> None:
    inside = (ip_network("10.88.0.0/16"), ip_network("fd00:88::/64"))
    assert reach(f"{host}/tcp/4101", OwnNetworks(inside)) is expected


@pytest.mark.parametrize("host", ["172.17.0.1", "172.17.3.4", "172.25.0.1", "172.31.0.1"])
def test_a_lan_with_dockers_numbers_is_a_lan_where_this_machine_is_in_it(host: str) -> None:
    networks = OwnNetworks(outside=(ip_network(f"{host}/16", strict=False),))
    assert reach(f"/ip4/{host}/tcp/4101", networks) is Reach.LAN
    mine = [at("8.8.8.8", ANNA), at(host, ANNA)]
    assert hosts(parse_link(format_link(RUN, [*mine, at("172.19.0.1", BERT)], networks)).addresses) == ["8.8.8.8", host]


def at(host: str, peer: str) -> str:
    return f"/ip4/{host}/tcp/4101/p2p/{peer}"


def hosts(addresses: list[str] | tuple[str, ...]) -> list[str]:
    return [each.split("/")[2] for each in addresses]


def test_a_second_network_of_ours_is_a_turn_ahead_of_the_first_one_of_many_others() -> None:
    """A VPN that all are in comes first with everybody; the neighbour who is not in it finds a door all the same."""
    others = [at(f"10.8.0.{number}", Identity.generate().peer) for number in range(2, 20)]
    more = [at(f"192.168.{number}.5", ANNA) for number in range(2, 6)]
    mine = [at("10.8.0.1", ANNA), at("192.168.1.5", ANNA), *more, at("127.0.0.1", ANNA)]
    link = format_link(RUN, [*mine, *others])
    assert hosts(parse_link(link).addresses) == ["10.8.0.1", "192.168.1.5", "10.8.0.2", "10.8.0.3", "10.8.0.4"]
    assert left_out(link, mine) == [each.partition("/p2p/")[0] for each in more]
    both = [at("8.8.8.8", ANNA), f"/ip6/2a00::1/tcp/4101/p2p/{ANNA}", at("192.168.1.5", ANNA)]
    assert ranked([*both, at("8.8.4.4", BERT)])[:2] == ["/ip4/8.8.8.8/tcp/4101", "/ip6/2a00::1/tcp/4101"]


def test_each_peers_best_address_comes_before_anybodys_second() -> None:
    addresses = [at("127.0.0.1", ANNA), at("10.0.0.1", ANNA), at("8.8.8.8", ANNA), at("10.0.0.2", BERT)]
    assert hosts(ranked(addresses)) == ["8.8.8.8", "10.0.0.2", "10.0.0.1"]


def test_the_loopback_is_for_swarms_that_are_nowhere_else() -> None:
    assert hosts(ranked([at("127.0.0.1", ANNA), at("127.0.0.1", BERT)])) == ["127.0.0.1"]
    assert hosts(ranked([at("127.0.0.1", ANNA), at("10.0.0.2", BERT)])) == ["10.0.0.2"]


def test_bridges_to_containers_stay_out_whoever_names_them() -> None:
    """Ours are known by the system, those of others by Docker's usual addresses."""
    ours = [at("192.168.1.5", ANNA), at("10.88.0.1", ANNA), at("172.17.0.1", ANNA), at("127.0.0.1", ANNA)]
    others = [at("192.168.1.6", BERT), at("172.17.0.1", BERT), at("172.19.0.1", BERT), at("172.17.0.2", BERT)]
    inside = at("10.88.0.2", Identity.generate().peer)
    bridged = OwnNetworks((ip_network("10.88.0.0/16"),))
    link = format_link(RUN, [*ours, *others, inside], bridged)
    assert hosts(parse_link(link).addresses) == ["192.168.1.5", "192.168.1.6"]
    assert left_out(link, ours, bridged) == []


def test_what_leads_to_one_machine_is_named_if_there_is_nothing_else_and_then_the_widest() -> None:
    bridged = OwnNetworks((ip_network("172.17.0.0/16"),))
    alone = [at("127.0.0.1", ANNA), at("172.17.0.1", ANNA)]
    assert hosts(ranked(alone, bridged)) == ["127.0.0.1"]
    assert hosts(ranked(alone[1:], bridged)) == ["172.17.0.1"], "it listens there only"
    assert hosts(ranked([at("127.0.0.1", BERT), at("172.17.0.2", BERT)])) == ["172.17.0.2"], "a container alone"


def test_of_the_ipv6_addresses_of_a_peer_in_one_network_one_is_named() -> None:
    mine = [f"/ip6/2001:db8::{number}/tcp/4101/p2p/{ANNA}" for number in range(1, 4)]
    elsewhere, of_bert = f"/ip6/2001:db8:1::1/tcp/4101/p2p/{ANNA}", f"/ip6/2001:db8::9/tcp/4101/p2p/{BERT}"
    assert sorted(hosts(ranked([*mine, elsewhere, of_bert]))) == ["2001:db8:1::1", "2001:db8::1", "2001:db8::9"]


def test_a_relay_keeps_its_name_and_what_is_no_address_stays_out() -> None:
    relayed = f"/ip4/8.8.8.8/tcp/4101/p2p/{ANNA}/p2p-circuit/p2p/{BERT}"
    assert ranked([relayed, "nonsense", "/ip4/8.8.8.8"]) == [relayed]
    assert parse_link(format_link(RUN, [relayed])).addresses == (relayed,)

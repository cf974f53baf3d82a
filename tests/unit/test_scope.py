"""The scope of an address (internet, local network, this machine), and which addresses a peer may name to us."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from shoal.dht.scope import Scope, is_near, scope_between, scope_of, within_scope, worth_dialling
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.multiaddrs import host_and_port
from shoal.protocol.messages.dht import Contact, FindNode, Greet, Greeted, Nodes, Records

HERE, HOME, AWAY = "/ip4/127.0.0.1/tcp/4101", "/ip4/192.168.1.7/tcp/4101", "/ip4/203.0.113.9/tcp/4101"
ANNA, BERT, CARL = PeerId("anna"), PeerId("bert"), PeerId("carl")


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        (HERE, Scope.LOOPBACK),
        ("/ip6/::1/tcp/1", Scope.LOOPBACK),
        (HOME, Scope.LAN),
        ("/ip4/10.0.0.1/tcp/1/p2p/12D3KooW", Scope.LAN),
        ("/ip4/172.31.0.1/tcp/1", Scope.LAN),
        ("/ip4/169.254.1.1/tcp/1", Scope.LAN),
        ("/ip4/100.64.0.1/tcp/1", Scope.LAN),  # behind a carrier's NAT
        ("/ip6/fd00::1/tcp/1", Scope.LAN),
        ("/ip6/fe80::1/tcp/1", Scope.LAN),
        (AWAY, Scope.INTERNET),  # RFC 5737: a network lab plays the internet there
        ("/ip4/198.51.100.1/tcp/1", Scope.INTERNET),
        ("/ip6/2001:db8::1/tcp/1", Scope.INTERNET),
        ("/ip4/8.8.8.8/tcp/53", Scope.INTERNET),
        ("/ip4/0.0.0.0/tcp/1", None),
        ("/ip4/224.0.0.1/tcp/1", None),
        ("/ip4/255.255.255.255/tcp/1", None),
        ("/dns4/example.org/tcp/1", None),
        ("/ip4/8.8.8.8/udp/53", None),
        ("/ip4/8.8.8.8/tcp/0", None),
        ("/ip4/8.8.8.8/tcp/65536", None),
        ("/ip4/8.8.8.8/tcp/\u0663", None),  # a digit, but none of ours
        ("/ip4/::1/tcp/1", None),
        ("/ip4/8.8.8/tcp/1", None),
        ("/ip6/fe80::1%eth0/tcp/1", None),  # the name of somebody else's interface
        ("ip4/8.8.8.8/tcp/1", None),
        ("", None),
    ],
)
def test_the_scope_of_an_address(address: str, scope: Scope | None) -> None:
    assert scope_of(address) is scope
    assert (host_and_port(address) is None) <= (scope is None)


def test_a_peer_with_several_connections_is_as_near_as_the_nearest() -> None:
    assert scope_between([AWAY, HOME]) is Scope.LAN
    assert scope_between(["nonsense", HERE]) is Scope.LOOPBACK
    assert scope_between([]) is Scope.INTERNET


@pytest.mark.parametrize(
    ("scope", "kept"),
    [(Scope.LOOPBACK, (HERE, HOME, AWAY)), (Scope.LAN, (HOME, AWAY)), (Scope.INTERNET, (AWAY,))],
)
def test_what_does_not_reach_us_is_not_heard(scope: Scope, kept: tuple[str, ...]) -> None:
    everywhere = (HERE, HOME, AWAY, "/dns4/example.org/tcp/1")
    assert within_scope(Greet(everywhere, True), scope) == Greet(kept, True)
    assert within_scope(Greeted(everywhere, True, 7), scope) == Greeted(kept, True, 7)
    closer = (Contact(ANNA, everywhere), Contact(BERT, (AWAY,)))
    assert within_scope(Nodes(closer), scope) == Nodes((Contact(ANNA, kept), Contact(BERT, (AWAY,))))


def test_who_is_left_without_an_address_is_no_server_to_us() -> None:
    assert within_scope(Greet((HOME,), True), Scope.INTERNET) == Greet((), False)
    answer = within_scope(Records((), 0, (Contact(CARL, (HERE,)),)), Scope.LAN)
    assert answer == Records((), 0, ())


def test_all_else_is_heard_as_it_was_said() -> None:
    question = FindNode(Digest(NO_DIGEST))
    assert within_scope(question, Scope.INTERNET) is question


NEIGHBOUR, STRANGE = "/ip4/192.168.1.9/tcp/4101", "/ip4/10.9.8.7/tcp/80"


@pytest.mark.parametrize(
    ("horizon", "kept"),
    [
        (Scope.LOOPBACK, (HERE, NEIGHBOUR, STRANGE, AWAY)),
        (Scope.LAN, (NEIGHBOUR, STRANGE, AWAY)),  # a private network may be of many parts
        (Scope.INTERNET, (NEIGHBOUR, AWAY)),
    ],
)
def test_who_knows_the_internet_dials_no_private_network_that_it_is_not_in(
    horizon: Scope, kept: tuple[str, ...]
) -> None:
    written = (HERE, NEIGHBOUR, STRANGE, AWAY, "/dns4/example.org/tcp/1", "nonsense")
    assert worth_dialling(written, horizon, [ip_interface("192.168.1.2/24"), ip_interface("fd00::2/64")]) == kept


def test_near_is_what_lies_in_a_network_that_we_are_attached_to() -> None:
    attached = [ip_interface("192.168.1.2/24"), ip_interface("fd00::2/64")]
    assert is_near(HOME, attached)
    assert is_near("/ip6/fd00::77/tcp/1", attached)
    assert not any(is_near(address, attached) for address in (HERE, AWAY, STRANGE, "/ip6/fd01::77/tcp/1", "nonsense"))

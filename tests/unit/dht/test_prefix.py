"""Scopes and prefixes of addresses."""

from __future__ import annotations

import pytest

from shoal.dht.prefix import Scope, prefixes, scope, widest
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact

SCOPES = [
    ("/ip4/127.0.0.1/tcp/4101", Scope.LOOPBACK),
    ("/ip6/::1/tcp/4101", Scope.LOOPBACK),
    ("/ip4/192.168.1.7/tcp/4101", Scope.LAN),
    ("/ip4/10.0.0.1/tcp/1", Scope.LAN),
    ("/ip4/100.64.3.4/tcp/1", Scope.LAN),
    ("/ip6/fe80::1/tcp/4101", Scope.LAN),
    ("/ip6/fd00::1/tcp/4101", Scope.LAN),
    ("/dns4/node-3/tcp/4101", Scope.LAN),
    ("/dns/printer.local/tcp/4101", Scope.LAN),
    ("/dns4/example.org/tcp/4101", Scope.INTERNET),
    ("/ip4/8.8.8.8/tcp/4101", Scope.INTERNET),
    ("/ip4/203.0.113.5/tcp/4101", Scope.INTERNET),
    ("/ip4/198.51.100.5/tcp/4101", Scope.INTERNET),
    ("/ip6/2a00:1450::1/tcp/4101", Scope.INTERNET),
]


@pytest.mark.parametrize(("address", "expected"), SCOPES)
def test_scope(address: str, expected: Scope) -> None:
    assert scope(address) is expected


@pytest.mark.parametrize(
    "address", ["", "/", "ip4", "/ip4", "/ip4/", "/ip4/999.1.2.3/tcp/1", "/ip6/x/y", "/\x00", "/dns4/"]
)
def test_garbage_has_a_scope_and_harms_nobody(address: str) -> None:
    assert scope(address) in Scope
    prefixes(Contact(PeerId("x"), (address,)))


def test_prefixes_are_those_of_one_customer_and_of_one_provider() -> None:
    here = Contact(
        PeerId("x"), ("/ip4/8.8.4.1/tcp/1", "/ip4/8.8.4.2/tcp/1", "/ip6/2a00:1:2:3::4/tcp/1", "/ip4/10.0.0.1/tcp/1")
    )
    narrow, wide = prefixes(here)
    assert narrow == ("8.8.4.0/24", "2a00:1:2:3::/64")
    assert wide == ("8.8.0.0/16", "2a00:1:2::/48")


def test_names_of_one_domain_are_one_prefix() -> None:
    first, second = (Contact(PeerId("x"), (f"/dns4/{name}.example.org/tcp/1",)) for name in "ab")
    assert prefixes(first) == prefixes(second)
    assert prefixes(first)[0]


def test_local_addresses_have_no_prefix() -> None:
    assert prefixes(Contact(PeerId("x"), ("/ip4/127.0.0.1/tcp/1", "/ip4/192.168.0.4/tcp/1"))) == ((), ())


def test_the_widest_scope_counts() -> None:
    assert widest(Contact(PeerId("x"), ("/ip4/127.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1"))) is Scope.INTERNET
    assert widest(Contact(PeerId("x"), ())) is Scope.LOOPBACK

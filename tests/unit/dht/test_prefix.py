"""The network prefixes of addresses, by which many addresses count as those of one host."""

from __future__ import annotations

import pytest

from shoal.dht.table import prefixes
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact


@pytest.mark.parametrize("address", ["", "/", "ip4", "/ip4/999.1.2.3/tcp/1", "/\x00", "/dns4/a.example.org/tcp/1"])
def test_all_that_is_no_ip_address_is_one_hosts_doing(address: str) -> None:
    assert prefixes(Contact(PeerId("x"), (address, "nonsense"))) == (("",), ("",))


def test_prefixes_are_those_of_one_customer_and_of_one_provider() -> None:
    here = Contact(
        PeerId("x"), ("/ip4/8.8.4.1/tcp/1", "/ip4/8.8.4.2/tcp/1", "/ip6/2a00:1:2:3::4/tcp/1", "/ip4/10.0.0.1/tcp/1")
    )
    narrow, wide = prefixes(here)
    assert narrow == ("8.8.4.0/24", "2a00:1:2:3::/64")
    assert wide == ("8.8.0.0/16", "2a00:1:2::/48")


def test_local_addresses_have_no_prefix() -> None:
    assert prefixes(Contact(PeerId("x"), ("/ip4/127.0.0.1/tcp/1", "/ip4/192.168.0.4/tcp/1"))) == ((), ())

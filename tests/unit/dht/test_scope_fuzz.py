"""Whatever addresses a peer names: none is kept that leads nearer to us than the peer itself is."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libp2p.utils.multiaddr_utils import extract_ip_from_multiaddr
from multiaddr import Multiaddr

from shoal.dht.keys import K
from shoal.dht.scope import Scope, scope_of, within_scope
from shoal.dht.vetting import MAX_ADDRESSES, vet_addresses, vetted_contacts
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.multiaddrs import DOCUMENTATION
from shoal.protocol.messages.dht import Contact, Greet, Greeted, Nodes, Records
from tests.unit.dht import hostile_kit
from tests.unit.dht.hostile_kit import PEERS

scopes = st.sampled_from(Scope)


@lru_cache(2000)
def where_it_leads(address: str) -> Scope:
    """The scope of the host that libp2p would dial: a second opinion, which shares no code with the first."""
    host = ip_address(str(extract_ip_from_multiaddr(Multiaddr(address.partition("/p2p/")[0]))))
    if host.is_loopback:
        return Scope.LOOPBACK
    is_public = host.is_global and not getattr(host, "is_site_local", False)
    return Scope.INTERNET if is_public or any(host in network for network in DOCUMENTATION) else Scope.LAN


@given(hostile_kit.address)
@example("/ip4/8.8.8.8/tcp/4101/ip4/127.0.0.1/tcp/22")
@example("/ip6/2001:db8::1/tcp/1/ip4/127.0.0.1/tcp/22")
@example("/ip6/fec0::1/tcp/22")
@settings(max_examples=300)
def test_an_address_leads_where_we_think_it_does(address: str) -> None:
    found = scope_of(address)
    if found is not None:
        assert where_it_leads(address) is found


@given(hostile_kit.addresses, hostile_kit.contacts, hostile_kit.records, st.booleans(), scopes)
@settings(max_examples=100)
def test_nothing_that_lies_nearer_than_the_peer_is_heard(
    addresses: tuple[str, ...], contacts: tuple[Contact, ...], records: object, serves: bool, scope: Scope
) -> None:
    for greeting in (within_scope(Greet(addresses, serves), scope), within_scope(Greeted(addresses, serves, 1), scope)):
        assert isinstance(greeting, Greet | Greeted)
        assert all(where_it_leads(each) >= scope for each in greeting.addresses)
        assert greeting.serves == (serves and bool(greeting.addresses))
    for answer in (within_scope(Nodes(contacts), scope), within_scope(Records(records, 9, contacts), scope)):  # type: ignore[arg-type]
        assert isinstance(answer, Nodes | Records)
        assert all(each.addresses for each in answer.closer)
        assert all(where_it_leads(address) >= scope for each in answer.closer for address in each.addresses)
        assert isinstance(answer, Nodes) or answer.records == records


def test_of_endless_lists_only_as_much_is_looked_at_as_it_takes_to_blame() -> None:
    """Sixty thousand addresses would take two seconds, in which the node does nothing else."""
    endless = tuple(f"/ip4/9.9.{number >> 8}.{number & 255}/tcp/1" for number in range(60_000))
    greeting = within_scope(Greet(endless, True), Scope.INTERNET)
    assert greeting == Greet(endless[: MAX_ADDRESSES + 1], True)
    with pytest.raises(RemoteError):
        vet_addresses(endless[: MAX_ADDRESSES + 1], PEERS[0])
    contacts = tuple(Contact(PEERS[0], (address,)) for address in endless)
    answer = within_scope(Nodes(contacts), Scope.INTERNET)
    assert answer == Nodes(contacts[: K + 1])
    with pytest.raises(RemoteError):
        vetted_contacts(PEERS[1], PEERS[2], contacts[: K + 1])

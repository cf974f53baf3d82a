"""Scopes of addresses: this machine, a local network, the internet.

One DHT spans all three, so an address that a peer names means something only within its scope: an internet peer's
192.168.1.7 is another machine than ours. Hence

- of all addresses that a peer names, `heard` keeps those whose scope is at least that of the connection over which it
  names them; a contact that is left without one is dropped;
- of the addresses in a record, which anybody can have written, `worth_dialling` keeps those whose scope is at least
  that of our farthest connection, and those in a network to which we are attached.

Lists are cut one item beyond what anybody may name (hearsay.py), so that the core still notices who names more.

So nobody on the internet can make a node dial its own machine, or hosts of private networks that it is not in. Members
of a run are an exception, as a run may span routed private networks (node/peers/reach.py). Names are never looked up
for a peer. Documentation networks (RFC 5737, RFC 3849) count as the internet, so that a network lab can use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

from shoal.dht.hearsay import MAX_ADDRESS, MAX_ADDRESSES
from shoal.dht.keys import K
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, Greet, Greeted, Nodes, Records

CACHED = 16_384  # addresses whose scope is remembered


class Scope(IntEnum):
    """From where an address can be dialled; a wider scope is greater."""

    LOOPBACK = 0
    LAN = 1
    INTERNET = 2


def scope_of(address: str) -> Scope | None:
    """The scope of a multiaddr; None if nobody can dial it, or a name must be looked up first."""
    return _scope_of(address) if len(address) <= MAX_ADDRESS else None


@lru_cache(CACHED)
def _scope_of(address: str) -> Scope | None:
    where = host_and_port(address)
    return scope_of_host(where[0]) if where is not None else None


def scope_of_host(host: IPv4Address | IPv6Address) -> Scope | None:
    """The scope of an IP address; None if nobody can dial it."""
    if host.is_loopback:
        return Scope.LOOPBACK
    if is_public(host):
        return Scope.INTERNET
    if host.is_unspecified or host.is_multicast or host.is_reserved:
        return None
    return Scope.LAN


def scope_between(addresses: Iterable[str]) -> Scope:
    """The scope of the connections with a peer that lead to `addresses`: the narrowest; the widest if there is none."""
    return min((scope for address in addresses if (scope := scope_of(address)) is not None), default=Scope.INTERNET)


def within_reach(addresses: Sequence[str], scope: Scope) -> tuple[str, ...]:
    """Those of a peer's addresses that mean something to us, who are connected with their source in `scope`."""
    few = addresses[: MAX_ADDRESSES + 1]
    return tuple(address for address in few if (found := scope_of(address)) is not None and found >= scope)


def worth_dialling(
    addresses: Sequence[str], horizon: Scope, attached: Sequence[IPv4Interface | IPv6Interface]
) -> tuple[str, ...]:
    """Those of a record's addresses at which its author may be; `horizon` is the widest scope of our connections."""
    return tuple(
        address
        for address in addresses
        if (found := scope_of(address)) is not None
        and (found >= horizon or (found is Scope.LAN and is_near(address, attached)))
    )


def is_near(address: str, attached: Sequence[IPv4Interface | IPv6Interface]) -> bool:
    """Whether a multiaddr leads into a network to which we are attached."""
    where = host_and_port(address)
    return where is not None and any(where[0] in each.network for each in attached)


def heard(message: Message, scope: Scope) -> Message:
    """`message`, said over a connection in `scope`, without the addresses that mean nothing here."""
    match message:
        case Greet() | Greeted():
            addresses = within_reach(message.addresses, scope)
            return dataclasses.replace(message, addresses=addresses, serves=message.serves and bool(addresses))
        case Nodes() | Records():
            return dataclasses.replace(message, closer=_contacts(message.closer, scope))
    return message


def _contacts(contacts: Sequence[Contact], scope: Scope) -> tuple[Contact, ...]:
    near = (Contact(each.peer, within_reach(each.addresses, scope)) for each in contacts[: K + 1])
    return tuple(each for each in near if each.addresses)

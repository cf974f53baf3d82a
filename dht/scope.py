"""Scopes of addresses: this machine, a local network, the internet.

One DHT spans all three, so an address that a peer names means something only within its scope: 192.168.1.7 is another
machine for a peer on the internet than for us. Hence

- of the addresses in a peer's message, `within_scope` keeps those whose scope is at least that of the connection over
  which it came; a contact without any is dropped;
- of the addresses in a record, which anybody can have written, `worth_dialling` keeps those whose scope is at least
  that of our farthest connection, and those in a network to which we are attached.

Lists are cut one item beyond what a peer may name (vetting.py), so that the core still notices a peer that names more.

So nobody on the internet can make a node dial its own machine, or hosts of private networks that it is not in. Members
of a run are an exception, as a run may span routed private networks (node/peers/reach.py). Host names that peers give
are never looked up. Documentation networks (RFC 5737, RFC 3849) count as the internet, so that a network lab can use
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

from shoal.dht.keys import K
from shoal.dht.vetting import MAX_ADDRESS, MAX_ADDRESSES
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, Greet, Greeted, Nodes, Records

CACHED = 16_384  # addresses whose scope is remembered


class Scope(IntEnum):
    """From where an address can be dialled; wider scopes are greater."""

    LOOPBACK = 0
    LAN = 1
    INTERNET = 2


def scope_of(address: str) -> Scope | None:
    """The scope of a multiaddr; None if nobody can dial it, or only after a name lookup."""
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
    """The narrowest scope among a peer's connections, which lead to `addresses`; INTERNET if there are none."""
    return min((scope for address in addresses if (scope := scope_of(address)) is not None), default=Scope.INTERNET)


def within_reach(addresses: Sequence[str], scope: Scope) -> tuple[str, ...]:
    """The addresses that mean something to us, if a peer connected in `scope` names them."""
    few = addresses[: MAX_ADDRESSES + 1]
    return tuple(address for address in few if (found := scope_of(address)) is not None and found >= scope)


def worth_dialling(
    addresses: Sequence[str], horizon: Scope, attached: Sequence[IPv4Interface | IPv6Interface]
) -> tuple[str, ...]:
    """The addresses of a record at which its author may be; `horizon` is the widest scope of our connections."""
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


def within_scope(message: Message, scope: Scope) -> Message:
    """`message`, which came over a connection in `scope`, without the addresses that mean nothing to us."""
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

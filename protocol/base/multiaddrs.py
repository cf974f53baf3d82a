"""Multiaddrs as text. One consists of a place, which can be dialled, and perhaps the PeerID that should answer there.

/ip4/192.0.2.7/tcp/4101/p2p/NAME                                 dialled directly
/ip4/192.0.2.7/tcp/4101/p2p/RELAY/p2p-circuit/p2p/NAME           by a relay: the place ends in /p2p-circuit
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

CIRCUIT = "/p2p-circuit"
NAMES = (1, 4)  # positions of PeerIDs among the parts after the port
SHAPES: tuple[list[str], ...] = ([], ["p2p"], ["p2p", "p2p-circuit"], ["p2p", "p2p-circuit", "p2p"])  # the other parts
MAX_PORT = 65_535
DOCUMENTATION = tuple(
    ip_network(each) for each in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)
Kind = Hashable  # of an address, see kind_of_host
WIDEST_FIRST = ("internet", "other", "relayed", "network", "loopback")  # kinds: those that most peers can use first
Place = tuple[str, int]  # a numerical host and a port
IpNetwork = IPv4Network | IPv6Network


class OwnNetworks(NamedTuple):
    """The networks that this machine is in, as its system tells; empty where that does not."""

    inside: tuple[IpNetwork, ...] = ()  # of its own containers and virtual machines, or of cards without a cable
    outside: tuple[IpNetwork, ...] = ()  # in which there may be other machines


NO_NETWORKS = OwnNetworks()


SITE_LOCAL = ip_network("fec0::/10")  # RFC 3879: deprecated private networks, which Python calls global


def multiaddr(host: str, port: int) -> str:
    """The multiaddr of a TCP port."""
    return f"/ip{ip_address(host).version}/{host}/tcp/{port}"


def split(address: str) -> tuple[str, str]:
    """The place, and the PeerID that should answer there; empty if none is named."""
    way, circuit, end = address.rpartition(CIRCUIT)
    place, _, name = end.partition("/p2p/")
    return way + circuit + place, name


def place_of(address: str) -> str:
    """The place without the PeerID."""
    return split(address)[0]


def relay_of(address: str) -> tuple[str, str]:
    """The place and the PeerID of the relay in an address; empty if it is dialled directly."""
    way, _, _ = address.rpartition(CIRCUIT)
    return split(way)


def is_relayed(address: str) -> bool:
    """Whether the address leads through a relay."""
    return CIRCUIT in address


def host_and_port(address: str) -> tuple[IPv4Address | IPv6Address, int] | None:
    """The IP address and TCP port of a multiaddr, or of its relay; None if it has others, such as a host name.

    Nothing but PeerIDs may follow: of two hosts in one address libp2p dials the second.
    """
    parts = address.split("/")
    if [part for number, part in enumerate(parts[5:]) if number not in NAMES] not in SHAPES:
        return None
    if len(parts) < 5 or parts[0] or parts[3] != "tcp" or not is_port(parts[4]) or "%" in parts[2]:
        return None
    try:
        host = ip_address(parts[2])
    except ValueError:
        return None
    return (host, int(parts[4])) if parts[1] == f"ip{host.version}" else None


def is_public(host: IPv4Address | IPv6Address) -> bool:
    """Whether an address is public; documentation networks count as public, so that a network lab can use them."""
    if any(host in network for network in DOCUMENTATION):
        return True
    is_odd = host.is_multicast or host.is_reserved or host.is_unspecified or host in SITE_LOCAL
    return host.is_global and not is_odd


def kind_of_host(host: str) -> Kind:
    """The kind of an IP address: addresses of each kind are reached by peers that reach no other kind."""
    address = ip_address(host)
    return address.version, "loopback" if address.is_loopback else "internet" if is_public(address) else "network"


def kind_of(address: str) -> Kind:
    """The kind of a multiaddr; relayed addresses are one kind, and host names another."""
    if is_relayed(address):
        return "relayed"
    where = host_and_port(address)
    return kind_of_host(str(where[0])) if where is not None else "other"


def reach(address: str) -> tuple[int, int]:
    """A key to sort multiaddrs by: those that most peers can use come first."""
    kind = kind_of(address)
    version, where = kind if isinstance(kind, tuple) else (0, kind)
    return WIDEST_FIRST.index(str(where)), version


def shortlist(addresses: Iterable[str], most: int, kind: Callable[[str], Kind] = kind_of) -> tuple[str, ...]:
    """At most `most` of ranked addresses, in their order; the best of each kind are chosen before all others.

    All lists of addresses that may be too long to be sent, tried or shown are cut by it.
    """
    ordered = list(dict.fromkeys(addresses))
    firsts = {kind(each): each for each in reversed(ordered)}.values()
    chosen = sorted(ordered, key=lambda each: each not in firsts)[:most]
    return tuple(each for each in ordered if each in chosen)


@lru_cache(maxsize=4096)  # called with the same addresses for each payload
def any_is_public(addresses: tuple[str, ...]) -> bool:
    """Whether one of these multiaddrs leads to the internet."""
    where = (host_and_port(address) for address in addresses)
    return any(each is not None and is_public(each[0]) for each in where)


def is_port(text: str) -> bool:
    """Whether `text` is the number of a port that can be dialled."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_PORT

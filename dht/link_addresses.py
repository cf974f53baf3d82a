"""Which addresses a run link names, best first: those that most others can reach, of as many peers as possible.

Not those that lead to one machine only: the loopback, and bridges to its own containers and virtual machines. Such an
address is the same on many machines, so elsewhere it leads to somebody else, or to nobody. They are named only if there
is nothing better. Of the networks that this machine is in its system tells what they are, and nothing else counts; of
others there is only the number to go by, which Docker takes in the same order everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from shoal.dht.scope import Scope, scope_of_host
from shoal.protocol.base.multiaddrs import NO_NETWORKS, OwnNetworks, is_port, is_relayed, kind_of, place_of

NAME_PROTOCOLS = ("dns", "dns4", "dns6")
DOCKER = ip_network("172.17.0.0/16")  # its default network, in which all containers are that are told no other
DOCKER_POOL = tuple(ip_network(f"172.{number}.0.0/16") for number in range(17, 32))  # of further ones, as Compose makes


class Reach(IntEnum):
    """From where an address can be dialled; wider is greater."""

    BRIDGE = 0  # from this machine and its own containers
    LOOPBACK = 1
    CONTAINERS = 2  # from one machine and its containers, perhaps not this one
    LAN = 3
    INTERNET = 4


def ranked(addresses: Sequence[str], networks: OwnNetworks = NO_NETWORKS) -> list[str]:
    """`addresses` without PeerIDs, best first: each peer's best, then each one's second best, and so on.

    The internet comes before the LAN. An address in a network that no better one is in moves up a turn, for peers that
    can reach only that network. Of a peer's IPv6 addresses in one network the first is named. Narrower than LAN are
    only those of swarms that have no others, and then the widest. `networks` are those that this machine is in.
    """
    reaches = {address: reach(address, networks) for address in addresses if is_address(address)}
    least = min(Reach.LAN, max(reaches.values(), default=Reach.LAN))
    peers: dict[str, dict[Hashable, str]] = {}
    for address in sorted(reaches, key=lambda address: -reaches[address]):
        if reaches[address] >= least:
            peers.setdefault(_peer(address), {}).setdefault(_subnet(address), address)
    ordered = (enumerate(each.values()) for each in peers.values())
    turns = [(turn, -reaches[address], address) for each in ordered for turn, address in each]
    seen, entries = set[Hashable](), list[tuple[int, bool, int, str]]()
    for turn, width, address in sorted(turns, key=lambda each: each[:2]):
        is_known = (network := _network(address)) in seen
        seen.add(network)
        entries.append((turn + is_known, is_known, width, address))
    return list(dict.fromkeys(_without_name(address) for *_, address in sorted(entries, key=lambda each: each[:3])))


def reach(address: str, networks: OwnNetworks = NO_NETWORKS) -> Reach:
    """From where an address can be dialled; for a host name a guess, as nothing is looked up."""
    name = address.split("/")[2]
    if (host := _ip(name)) is None:
        return Reach.LOOPBACK if name == "localhost" else Reach.LAN if name.endswith(".local") else Reach.INTERNET
    if any(host in network for network in networks.inside):
        return Reach.BRIDGE
    if not any(host in network for network in networks.outside):
        if _is_docker_host(host):
            return Reach.BRIDGE
        if host in DOCKER:
            return Reach.CONTAINERS
    scope = scope_of_host(host)
    return Reach.INTERNET if scope is Scope.INTERNET else Reach.LAN if scope is Scope.LAN else Reach.LOOPBACK


def is_address(text: str) -> bool:
    """Whether this is a multiaddr that a node may have: a host, a port, and perhaps a PeerID."""
    start, kind, host, *rest = [*text.split("/"), "", "", ""]
    segments = re.fullmatch(r"(/[A-Za-z0-9._:-]+){4,}", text)
    if start or segments is None or rest[0] not in ("tcp", "udp") or not is_port(rest[1]):
        return False
    found = _ip(host)
    return kind in NAME_PROTOCOLS if found is None else kind == f"ip{found.version}"


def _without_name(address: str) -> str:
    """The address without the PeerID of who answers there, unless a relay needs it."""
    return address if is_relayed(address) else place_of(address)


def _is_docker_host(host: IPv4Address | IPv6Address) -> bool:
    """Whether this is the address of a machine itself in one of Docker's networks: that of each machine with Docker."""
    return any(host == network.network_address + 1 for network in DOCKER_POOL)


def _peer(address: str) -> str:
    """Whose address it is: the PeerID at its end, or at least the host."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else address.split("/")[2]


def _subnet(address: str) -> Hashable:
    """The network of an IPv6 address, in which machines have several that come and go; of others the address itself."""
    host = _ip(address.split("/")[2])
    if host is None or host.version == 4 or is_relayed(address):
        return address
    return ip_network((host, 64), strict=False)


def _network(address: str) -> Hashable:
    """The network of an address, as far as it shows: private networks are distinguished by their prefix."""
    name = address.split("/")[2]
    if (host := _ip(name)) is None:
        return name
    if is_relayed(address) or scope_of_host(host) is not Scope.LAN:
        return kind_of(place_of(address))
    return ip_network((host, 16 if host.version == 4 else 48), strict=False)


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None

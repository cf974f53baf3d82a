"""A home router: what it can be asked in any protocol, how ours is found, and which ports it should forward.

Only Linux tells without an external tool which machine is our default gateway (/proc). Elsewhere routers are found by
multicast alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Protocol

from shoal.node.base.options import P2P_PORT
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.net.system.addresses import interface_addresses, way_out
from shoal.protocol.net.system.interfaces import InterfaceAddress

ROUTES = Path("/proc/net/route")
IS_UP, HAS_GATEWAY = 0x1, 0x2
EVERYWHERE = "0.0.0.0"


class GatewayError(TransportError):
    """A router does not answer, or its answer breaks the protocol."""


class Declined(GatewayError):
    """A router refuses; `is_taken` if it may accept another external port."""

    def __init__(self, words: str, *, is_taken: bool = False) -> None:
        super().__init__(words)
        self.is_taken = is_taken


@dataclass(frozen=True, slots=True)
class PortLease:
    """A mapped TCP port: ours, and the router's external port that leads to it."""

    port: int
    external: int
    lifetime: float  # seconds; infinite if the router's mappings have no end


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """What a router says about itself."""

    host: str  # its external address; empty if it has none
    lost: tuple[int, ...] = ()  # our ports whose mappings are gone


class Gateway(Protocol):
    """A router that can be asked; all methods raise GatewayError on failure."""

    protocol: str  # its name in `status`

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """The router's external address, and which of these leases it does not hold."""

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """Maps a port of ours for so many seconds, to that external port if possible."""

    async def unmap(self, lease: PortLease) -> None:
        """Removes a mapping."""


# -- which one is ours ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HomeNetwork:
    """The network of private addresses that we are in."""

    here: str  # our address
    network: IPv4Network
    gateway: str | None  # the default gateway, if it is known


def home_network(listen_host: str) -> HomeNetwork | None:
    """The private network of a node that listens on this address; None if there is no router to be asked."""
    here = way_out() if listen_host == EVERYWHERE else listen_host
    with suppress(OSError):
        return find_home_network(here, interface_addresses(), ROUTES.read_text("ascii"))
    return find_home_network(here, interface_addresses(), "")


def find_home_network(here: str, interfaces: Iterable[InterfaceAddress], routes: str) -> HomeNetwork | None:
    """The same, from our address, the interfaces, and the text of Linux's routing table."""
    for each in interfaces:
        if isinstance(each, IPv4Interface) and str(each.ip) == here and _is_private(each.ip):
            gateway = default_gateway(routes)
            is_near = gateway is not None and gateway in each.network and gateway != each.ip and _is_private(gateway)
            return HomeNetwork(here, each.network, str(gateway) if is_near else None)
    return None


def default_gateway(routes: str) -> IPv4Address | None:
    """The default gateway in Linux's routing table: hexadecimal columns, addresses in native byte order."""
    found = []
    for line in routes.splitlines()[1:]:
        columns = line.split()
        with suppress(ValueError, IndexError):
            destination, gateway, flags, mask = (int(columns[number], 16) for number in (1, 2, 3, 7))
            if destination == mask == 0 and flags & IS_UP and flags & HAS_GATEWAY:
                found.append((int(columns[6]), IPv4Address(gateway.to_bytes(4, sys.byteorder))))
    return min(found)[1] if found else None


def _is_private(host: IPv4Address) -> bool:
    """Whether an address is behind a NAT: of RFC 1918, or of a carrier's CGNAT."""
    return not (is_public(host) or host.is_loopback or host.is_link_local or host.is_unspecified or host.is_multicast)


# -- which ports it should forward to a node; the bulk socket, for payloads, is at the port after the main one --------


def ports_to_forward(port: int = P2P_PORT) -> str:
    """The ports of a node that listens on `port`, in words."""
    return f"TCP {port} and {port + 1}"


def port_in(addresses: Sequence[str]) -> int:
    """The port on which a node with these own addresses listens; the default port if they have none."""
    return next((place[1] for place in map(host_and_port, addresses) if place), P2P_PORT)

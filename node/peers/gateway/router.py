"""A home router: what any of them is asked, whichever protocol it speaks; which one is ours; what it should forward.

Only Linux tells without a tool which machine leads out of our network (/proc). Elsewhere routers are found by multicast
alone.
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
    """A router does not answer, or not in its protocol's words."""


class Declined(GatewayError):
    """A router answers that it will not; `is_taken` if another external port may do."""

    def __init__(self, words: str, *, is_taken: bool = False) -> None:
        super().__init__(words)
        self.is_taken = is_taken


@dataclass(frozen=True, slots=True)
class PortLease:
    """A TCP port of ours, and the one that leads to it at the router's outside."""

    port: int
    external: int
    lifetime: float  # seconds; infinite where the router knows no end


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """What a router says of itself."""

    host: str  # its address outside; empty if it has none to give
    lost: tuple[int, ...] = ()  # ports of ours that do not lead to us any more


class Gateway(Protocol):
    """A router that can be asked; each question raises GatewayError where nothing comes of it."""

    protocol: str  # its name in `status`

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """Where its outside is, and which of these leases it does not hold."""

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """Have a port of ours lead to us, from that external port if it may be, for so many seconds."""

    async def unmap(self, lease: PortLease) -> None:
        """Have it lead to us no more."""


# -- which one is ours ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HomeNetwork:
    """Our place in a network of private addresses."""

    here: str
    network: IPv4Network
    gateway: str | None  # who leads out, if that is known


def home_network(listen_host: str) -> HomeNetwork | None:
    """Where a router could be asked for a node that listens there; None where there is none to be asked."""
    here = way_out() if listen_host == EVERYWHERE else listen_host
    with suppress(OSError):
        return place(here, interface_addresses(), ROUTES.read_text("ascii"))
    return place(here, interface_addresses(), "")


def place(here: str, interfaces: Iterable[InterfaceAddress], routes: str) -> HomeNetwork | None:
    """The same, from what the system says."""
    for each in interfaces:
        if isinstance(each, IPv4Interface) and str(each.ip) == here and _is_private(each.ip):
            gateway = default_gateway(routes)
            is_near = gateway is not None and gateway in each.network and gateway != each.ip and _is_private(gateway)
            return HomeNetwork(here, each.network, str(gateway) if is_near else None)
    return None


def default_gateway(routes: str) -> IPv4Address | None:
    """The gateway in Linux's table of routes: hexadecimal columns, addresses in the machine's order of bytes."""
    found = []
    for line in routes.splitlines()[1:]:
        columns = line.split()
        with suppress(ValueError, IndexError):
            destination, gateway, flags, mask = (int(columns[number], 16) for number in (1, 2, 3, 7))
            if destination == mask == 0 and flags & IS_UP and flags & HAS_GATEWAY:
                found.append((int(columns[6]), IPv4Address(gateway.to_bytes(4, sys.byteorder))))
    return min(found)[1] if found else None


def _is_private(host: IPv4Address) -> bool:
    """Whether such an address is behind somebody's router: RFC 1918, or between a carrier and its customers."""
    return not (is_public(host) or host.is_loopback or host.is_link_local or host.is_unspecified or host.is_multicast)


# -- which ports it should lead to a node; the bulk socket, for payloads, is at the port after that of all else -------


def ports_to_forward(port: int = P2P_PORT) -> str:
    """Those of a node that listens on `port`."""
    return f"TCP {port} and {port + 1}"


def port_in(addresses: Sequence[str]) -> int:
    """On which a node with these own addresses listens; the usual port if they do not say."""
    return next((place[1] for place in map(host_and_port, addresses) if place), P2P_PORT)

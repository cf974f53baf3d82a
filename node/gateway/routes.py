"""Which local network we are in, and who leads out of it, as far as the system tells without a tool.

Where the way out is not told (only Linux has /proc), the router is looked for by multicast alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from shoal.protocol.addresses import attached, way_out
from shoal.protocol.interfaces import Interface
from shoal.protocol.multiaddrs import is_public

ROUTES = Path("/proc/net/route")
IS_UP, HAS_GATEWAY = 0x1, 0x2
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Home:
    """Our place in a network of private addresses."""

    here: str
    network: IPv4Network
    gateway: str | None  # who leads out, if that is known


def home(listen_host: str) -> Home | None:
    """Where a router could be asked for a node that listens there; None where there is none to be asked."""
    here = way_out() if listen_host == EVERYWHERE else listen_host
    with suppress(OSError):
        return place(here, attached(), ROUTES.read_text("ascii"))
    return place(here, attached(), "")


def place(here: str, interfaces: Iterable[Interface], routes: str) -> Home | None:
    """The same, from what the system says."""
    for each in interfaces:
        if isinstance(each, IPv4Interface) and str(each.ip) == here and _is_private(each.ip):
            gateway = default_gateway(routes)
            is_near = gateway is not None and gateway in each.network and gateway != each.ip and _is_private(gateway)
            return Home(here, each.network, str(gateway) if is_near else None)
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

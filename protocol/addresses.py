"""Addresses as people write them: host names are looked up when they are dialled, and our own addresses are found.

Names are those of the system (a container's neighbours, /etc/hosts): /dns4/NAME, /dns6/NAME or /dns/NAME.
"""

from __future__ import annotations

import asyncio
import socket

from shoal.protocol.errors import TransportError

FAMILIES = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6, "dns": socket.AF_UNSPEC}
PROTOCOLS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}


async def resolve(address: str) -> tuple[str, ...]:
    """`address` with its host name, if it has one, replaced by each of the name's addresses."""
    _, kind, name, *rest = [*address.split("/", 3), "", "", ""][:4]
    if kind not in FAMILIES:
        return (address,)
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(name, None, family=FAMILIES[kind], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no name server could know
        raise TransportError(f"the name {name} cannot be looked up: {getattr(error, 'strerror', error)}") from error
    hosts = dict.fromkeys((PROTOCOLS[family], where[0]) for family, *_, where in found if family in PROTOCOLS)
    return tuple(f"/{protocol}/{host}/{'/'.join(rest)}" for protocol, host in hosts)


def own_addresses() -> list[str]:
    """Our IPv4 addresses: that of the default route, if there is one, and the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # asks for a route; sends nothing
            return list(dict.fromkeys([probe.getsockname()[0], "127.0.0.1"]))
        except OSError:
            return ["127.0.0.1"]

"""Which ports a router should lead to a machine, in the words that people are told everywhere. Pure.

The bulk socket, of which payloads are to have the use, is at the port after that of all else.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.node.options import P2P_PORT
from shoal.protocol.multiaddrs import host_and_port


def ports_to_forward(port: int = P2P_PORT) -> str:
    """Those of a node that listens on `port`."""
    return f"TCP {port} and {port + 1}"


def port_in(addresses: Sequence[str]) -> int:
    """On which a node with these own addresses listens; the usual port if they do not say."""
    return next((place[1] for place in map(host_and_port, addresses) if place), P2P_PORT)

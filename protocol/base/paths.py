"""How two peers may be connected, as a value that shells pass on. The paths, best first:

direct      one of the two has dialled the other
punched     both dialled at the same moment, and so opened their routers for each other (hole punching)
relayed     a third peer passes on their traffic
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DIRECT, PUNCHED, RELAYED = PATHS = ("direct", "punched", "relayed")


@dataclass(frozen=True, slots=True)
class Route:
    """One connection: its path, the multiaddrs of the other end, and our address that it dialled, if it did."""

    path: str
    addresses: tuple[str, ...]
    came_to: str = ""


def best_path(routes: Iterable[Route]) -> str:
    """The best path among the connections with one peer: control messages take it."""
    return min((route.path for route in routes), key=PATHS.index, default=DIRECT)

"""How two peers may be connected, best first; a value that shells pass on. Pure.

direct      one of the two has dialled the other
punched     both dialled at the same moment, and so opened their own routers for the other
relayed     by a third peer, which passes on their traffic
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DIRECT, PUNCHED, RELAYED = PATHS = ("direct", "punched", "relayed")


@dataclass(frozen=True, slots=True)
class Route:
    """One connection: its path, the multiaddrs to which it leads, and where of ours the other end has dialled us."""

    path: str
    addresses: tuple[str, ...]
    came_to: str = ""


def best_path(routes: Iterable[Route]) -> str:
    """The path of the best of several connections with one peer: the one that control messages take."""
    return min((route.path for route in routes), key=PATHS.index, default=DIRECT)

"""The ways on which two peers may be connected, the best first; a value that shells pass on. Pure.

direct      one of the two has simply dialled the other, whichever it was
punched     it took both, who dialled at the same moment: each has opened its own router for the other
relayed     by a third peer, which passes on what they say
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
    """The path of the best of several connections with one peer: that is where words go."""
    return min((route.path for route in routes), key=PATHS.index, default=DIRECT)

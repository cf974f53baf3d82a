"""Doors that we knock at, and which of them are shut: said once, and once more when they open.

A door is an address that somebody gave us, or a peer that we know of. The former are few and a person can mend them, so
a shut one is a warning that says what to do; the latter come and go, and are told of in passing.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import Enum

from shoal.node.logs import warn
from shoal.protocol.ids import PeerId

log = logging.getLogger("shoal.daemon")


class Kind(Enum):
    """How we came to know of a door: in words, for one and for several."""

    BOOTSTRAP = ("bootstrap address", "bootstrap addresses")
    LINK = ("address of a link", "addresses of links")
    KNOWN = ("peer seen before", "peers seen before")
    NEARBY = ("peer on this network", "peers on this network")

    def count(self, number: int) -> str:
        """Such a number of doors."""
        return f"{number} {self.value[number != 1]}"


class Doors:
    """Those that are shut. Whoever drops a door must `forget` it."""

    def __init__(self) -> None:
        self._shut: dict[str, Kind] = {}

    def shut(self, door: str, kind: Kind, reason: str) -> None:
        """Nobody answers at `door`."""
        if door not in self._shut:
            self._shut[door] = kind
            if kind in (Kind.BOOTSTRAP, Kind.LINK):
                warn(log, "bootstrap-unreachable", _complaint(door, kind, reason))
            else:
                log.info("no answer from the %s %s: %s", kind.value[0], door, reason)

    def opened(self, door: str, peer: PeerId) -> None:
        """`peer` answers at `door`."""
        if self._shut.pop(door, None) is not None:
            log.info("%s answers now, and is the peer %s", door, peer)

    def forget(self, door: str) -> None:
        """The door is of no interest any more."""
        self._shut.pop(door, None)

    def summary(self) -> str | None:
        """What was tried in vain, in words; None if nothing was."""
        if not self._shut:
            return None
        counts = Counter(self._shut.values())
        tried = [kind.count(counts[kind]) for kind in Kind if counts[kind]]
        listed = " and ".join([*([", ".join(tried[:-1])] if tried[1:] else []), tried[-1]])
        return f"nobody has answered yet, tried {listed}; trying again"


def _complaint(door: str, kind: Kind, reason: str) -> str:
    return (
        f"nobody can be reached at the {kind.value[0]} {door} ({reason}): check that the node there runs, and with "
        "`shoal status` there that this is still its address; all others are tried meanwhile, and this one again"
    )

"""Doors that we knock at, and which of them are shut: said once, and once more when they open.

A door is an address that somebody gave us, or a peer that we know of. The former are few and a person can mend them, so
a shut one is a warning that says what to do; the latter come and go, and are told of in passing.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from shoal.node.logs import warn
from shoal.protocol.errors import LocalError, ShoalError
from shoal.protocol.ids import PeerId
from shoal.protocol.journal import ITSELF, OTHER

SAID, LONGEST = 3, 240  # doors of which a summary says what came of them; characters of each

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


@dataclass(frozen=True, slots=True)
class _Shut:
    """Why nobody whom we look for is behind a door."""

    kind: Kind
    reason: str
    is_wrong: bool  # somebody answers there: another peer, or ourselves


class Doors:
    """Those that are shut. Whoever drops a door must `forget` it."""

    def __init__(self) -> None:
        self._shut: dict[str, _Shut] = {}

    def shut(self, door: str, kind: Kind, error: ShoalError) -> None:
        """Nobody answers at `door`, or not whom we look for. A LocalError: it leads to ourselves."""
        is_wrong = isinstance(error, LocalError) or getattr(error, "code", "") in (ITSELF, OTHER)
        is_known = door in self._shut
        self._shut[door] = _Shut(kind, str(error), is_wrong)
        if is_known:
            return
        if kind in (Kind.BOOTSTRAP, Kind.LINK):
            code, words = _complaint(door, kind, error)
            warn(log, code, words)
        else:
            log.info("no answer from the %s %s: %s", kind.value[0], door, error)

    def opened(self, door: str, peer: PeerId) -> None:
        """`peer` answers at `door`."""
        if self._shut.pop(door, None) is not None:
            log.info("%s answers now, and is the peer %s", door, peer)

    def is_shut(self, door: str) -> bool:
        """Whether nobody has answered at `door` when it was last tried."""
        return door in self._shut

    def forget(self, door: str) -> None:
        """The door is of no interest any more."""
        self._shut.pop(door, None)

    @property
    def are_wrong(self) -> bool:
        """Whether somebody answers at any of them, and not whom we look for."""
        return any(each.is_wrong for each in self._shut.values())

    def summary(self) -> str | None:
        """What was tried in vain, and how it ended, in words; None if nothing was."""
        if not self._shut:
            return None
        counts = Counter(each.kind for each in self._shut.values())
        tried = [kind.count(counts[kind]) for kind in Kind if counts[kind]]
        listed = " and ".join([*([", ".join(tried[:-1])] if tried[1:] else []), tried[-1]])
        return f"nobody has answered yet, tried {listed}; trying again ({self._reasons()})"

    def _reasons(self) -> str:
        """Those that tell most come first: where somebody answers, then what a person can mend."""
        kinds = list(Kind)
        ranked = sorted(self._shut.items(), key=lambda item: (not item[1].is_wrong, kinds.index(item[1].kind)))
        said = [_reason(door, shut.reason) for door, shut in ranked[:SAID]]
        return "; ".join([*said, *([f"and {len(ranked) - SAID} more"] if len(ranked) > SAID else [])])


def _reason(door: str, reason: str) -> str:
    """What came of a door: the end of a PeerID is enough, and long reasons are cut."""
    words = reason if door in reason else f"{door[-6:] if '/' not in door else door}: {reason}"
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def _complaint(door: str, kind: Kind, error: ShoalError) -> tuple[str, str]:
    """The code and the words."""
    meanwhile = "all others are tried meanwhile, and this one again"
    if isinstance(error, LocalError):
        return "bootstrap-refused", f"the {kind.value[0]} {door} cannot be used: {error}; {meanwhile}"
    return "bootstrap-unreachable", (
        f"nobody can be reached at the {kind.value[0]} {door} ({error}): check that the node there runs, and with "
        f"`shoal status` there that this is still its address; {meanwhile}"
    )

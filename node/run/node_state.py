"""The state of a node, SOLO, CONNECTED, IN-ROUND or SPLIT, from evidence. Pure functions.

SPLIT means that a run has come apart: there is no quorum to decide anything, or a third of the last group, at least
two, were lost without a goodbye, or a peer has another history of the same round. Losses and histories are known from
membership and, by another path, from the directory in the DHT; the words name both. One death, or a lossy network, is
no split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.node.base.kept import names
from shoal.protocol.base.ids import PeerId

if TYPE_CHECKING:  # the command line imports this module, and must not load the messages
    from shoal.protocol.messages.membership import RunStatus

STATES = ("SOLO", "CONNECTED", "IN-ROUND", "SPLIT")
BUSY = ("matching", "reducing", "deciding", "exchanging", "applying")
LOSS_WINDOW = 60.0  # seconds within which lost members count as lost together


@dataclass(frozen=True, slots=True)
class SplitEvidence:
    """What a member sees of its run: `elsewhere` and `apart` from the directory, the rest from membership."""

    voters: int  # of whom a quorum decides what comes next; 0 in a run of replicas
    absent: Sequence[PeerId]  # voters that are not alive and have not left
    voteless: Sequence[PeerId]  # voters that are there, but in another life, or on another branch of the log
    has_quorum: bool
    group: int  # members of the last committed round
    lost: Sequence[PeerId]  # peers that were lost lately without a goodbye
    elsewhere: Sequence[PeerId]  # lost peers that have written into the directory since: they live beyond a cut
    apart: Sequence[PeerId]  # lost peers that have written another history of a round that we have decided
    own: RunStatus
    others: Sequence[tuple[PeerId, RunStatus]]


def why_split(seen: SplitEvidence) -> str:
    """The evidence that the run has come apart, in words; empty if there is none."""
    lost = sorted({*seen.lost, *seen.elsewhere})
    found = []
    if is_mass_loss(seen.group, len(lost)):
        found.append(f"{len(lost)} of the last {seen.group} members are lost without a goodbye ({names(lost)})")
    if not seen.has_quorum:
        found.append(f"no quorum, as {_why_no_quorum(seen)}")
    if rivals := [peer for peer, status in seen.others if _differs(status, seen.own)]:
        found.append(f"another history of round {seen.own.round} is that of {names(rivals)}")
    if seen.apart:
        found.append(f"the directory has another history of a decided round by {names(seen.apart)}")
    if found and lost:
        found.append(f"in the directory {_beyond(seen.elsewhere)} since")
    return "; ".join(found)


def _why_no_quorum(seen: SplitEvidence) -> str:
    words = {
        f"{len(seen.absent)} of {seen.voters} voters are absent": seen.absent,
        f"{len(seen.voteless)} of {seen.voters} voters are there without a vote that counts here": seen.voteless,
    }
    found = [f"{each} ({names(peers)})" for each, peers in words.items() if peers]
    return " and ".join(found) or "it has yielded to another branch of its log"


def is_mass_loss(group: int, lost: int) -> bool:
    """Whether so many of a group are lost that the network was probably cut."""
    return lost >= max(2, -(-group // 3))


def node_state(phases: Sequence[str], split: bool, connected: bool) -> str:
    """The state of a node in runs with these phases."""
    if split:
        return "SPLIT"
    if not connected:
        return "SOLO"
    return "IN-ROUND" if any(phase in BUSY for phase in phases) else "CONNECTED"


def _differs(status: RunStatus, own: RunStatus) -> bool:
    return status.round == own.round and status.history != own.history


def _beyond(elsewhere: Sequence[PeerId]) -> str:
    if not elsewhere:
        return "none of them has written"
    return f"{names(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} written"

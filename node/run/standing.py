"""SOLO, CONNECTED, IN-ROUND or SPLIT: where a node stands, from evidence. Pure functions.

SPLIT means that the run cannot decide without peers that are not here: no quorum for a round, or a third of the last
group (at least two) lost without a goodbye, or a peer with another history of the same round. Membership tells of
losses and histories, and so does, by another path, the directory in the DHT: what both say is in the words. One death,
or a lossy network, is no split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.protocol.base.ids import PeerId, short

if TYPE_CHECKING:  # the command line says what these words mean, and needs no message for that
    from shoal.protocol.messages.membership import RunStatus

STATES = ("SOLO", "CONNECTED", "IN-ROUND", "SPLIT")
BUSY = ("matching", "reducing", "preparing", "exchanging", "applying")
LOSS_WINDOW = 60.0  # seconds within which lost members count as lost together
NAMED = 6  # peers, in one sentence


@dataclass(frozen=True, slots=True)
class Scene:
    """What a member sees of its run. `elsewhere` and `apart` are what the directory says, the rest is membership's."""

    voters: int  # of the last round; 0 while there is none
    absent: Sequence[PeerId]  # those of them that are not here and have not left
    has_quorum: bool
    group: int  # members of the last committed round
    lost: Sequence[PeerId]  # died lately without a goodbye
    elsewhere: Sequence[PeerId]  # lost, and have written into the directory since: they live beyond a cut
    apart: Sequence[PeerId]  # lost, and have written another history of a round that we have decided
    own: RunStatus
    others: Sequence[tuple[PeerId, RunStatus]]


def why_split(scene: Scene) -> str:
    """The evidence that the run has come apart, in words; empty if there is none."""
    lost = sorted({*scene.lost, *scene.elsewhere})
    found = []
    if is_much(scene.group, len(lost)):
        found.append(f"{len(lost)} of the last {scene.group} members are lost without a goodbye ({_names(lost)})")
    if not scene.has_quorum:
        found.append(f"no quorum, as {len(scene.absent)} of {scene.voters} voters are absent ({_names(scene.absent)})")
    if rivals := [peer for peer, status in scene.others if _differs(status, scene.own)]:
        found.append(f"another history of round {scene.own.round} is that of {_names(rivals)}")
    if scene.apart:
        found.append(f"the directory has another history of a decided round by {_names(scene.apart)}")
    if found and lost:
        found.append(f"in the directory {_beyond(scene.elsewhere)} since")
    return "; ".join(found)


def is_much(group: int, lost: int) -> bool:
    """Whether so many of a group are lost that it is no accident of one or two machines."""
    return lost >= max(2, -(-group // 3))


def node_state(phases: Sequence[str], split: bool, connected: bool) -> str:
    """One word for a node in runs with these phases."""
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
    return f"{_names(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} written"


def _names(peers: Iterable[PeerId]) -> str:
    every = [short(peer) for peer in peers]
    rest = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {rest} more" if rest > 0 else "")

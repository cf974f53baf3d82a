"""SOLO, CONNECTED, IN-ROUND or SPLIT: where a node stands, from evidence. Pure functions.

SPLIT means that the run cannot decide without peers that are not here: no quorum for a round, or a third of the last
group (at least two) lost without a goodbye, or a peer with another history of the same round. Membership tells of
losses and histories, and so does, by another path, the directory in the DHT. One death, or a lossy network, is no
split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line says what these words mean, and needs no message for that
    from shoal.protocol.messages.status import RunStatus

BUSY = ("matching", "reducing", "preparing", "applying")
LOSS_WINDOW = 60.0  # seconds within which lost members count as lost together


def is_split(
    *, no_quorum: bool, group: int, lost: int, own: RunStatus, others: Sequence[RunStatus], conflict: bool = False
) -> bool:
    """Whether the evidence says that the swarm has come apart.

    `group` members were in the last committed round, of whom `lost` died lately without a goodbye, or live where we
    cannot reach them. `conflict`: the directory has another history of a round that we have decided.
    """
    if no_quorum or conflict or is_much(group, lost):
        return True
    return any(other.round == own.round and other.history != own.history for other in others)


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

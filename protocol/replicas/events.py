"""What a member of a run of replicas tells its application, beside HandIn, Waiting, Blamed, Parted and membership's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.replicas.pair import Exchanged as Exchanged


class Lapse(StrEnum):
    """Why there is no exchange in a round."""

    ALONE = "alone"  # nobody else is here who trains, in a round near ours
    BYE = "bye"  # the others are pairs without us
    NOBODY_LEFT = "nobody-left"  # whom we would have met declined, was lost, or did not come in time
    BEHIND = "behind"  # most of the others are rounds ahead: these rounds are passed over


@dataclass(frozen=True, slots=True)
class Met(Event):
    """We have a partner in this round; the exchange begins."""

    partner: PeerId


@dataclass(frozen=True, slots=True)
class Lapsed(Event):
    """No exchange in the rounds up to this one: go on from what there is, then say `applied`."""

    round: int
    reason: Lapse


@dataclass(frozen=True, slots=True)
class ReplicaReceived(Event):
    """A copy of the replica that `donor` signed is in the room for it: install it, then say `opened`."""

    round: int
    root: Digest
    donor: PeerId

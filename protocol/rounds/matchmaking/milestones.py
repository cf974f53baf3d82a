"""What the rounds of a run tell the application, and the member around them."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import PeerId
from shoal.protocol.rounds.agreement.roster import Plan
from shoal.protocol.rounds.allreduce.shelf import Decision
from shoal.protocol.rounds.matchmaking.failure import Failure


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A round is decided and all its bytes are here: apply it, then say `applied`."""

    decision: Decision
    counted: tuple[bool, ...]  # chunk by chunk: whether our own contribution is in it


@dataclass(frozen=True, slots=True)
class Aborted(Event):
    """An attempt came to nothing; the round goes on with the next one."""

    round: int
    attempt: int
    reason: Failure


@dataclass(frozen=True, slots=True)
class Behind(Event):
    """`peer` has committed rounds that we cannot follow one by one, or ours is the wrong state: catch up."""

    peer: PeerId
    round: int


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """We are in a group that is at work."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class HandIn(Event):
    """The others wait: contribute what there is."""

    round: int


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """We lead, but no group can be closed, and why."""

    reason: str

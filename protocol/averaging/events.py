"""What the rounds of a run tell: the application, and the member around them."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.protocol.averaging.apart import Ways
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message

# -- for the application ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A round is decided and all its bytes are here: apply it, then say `applied`."""

    decision: Decision
    counted: tuple[bool, ...]  # chunk by chunk: whether our own contribution is in it


@dataclass(frozen=True, slots=True)
class Lapsed(Event):
    """A round is over without a result, since its bytes are lost: the state is that before it. Then say `applied`."""

    round: int


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """The round has this roster, in which we are."""

    round: int
    roster: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]  # of the chunks
    proposer: PeerId
    ways: Ways = field(compare=False, default_factory=Ways)  # as far as its members have said


@dataclass(frozen=True, slots=True)
class HandIn(Event):
    """The others wait: contribute what there is."""

    round: int


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """We are the proposer, but the round cannot begin, and why."""

    reason: str


# -- for the member around us -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Want(Event):
    """Have this body decided."""

    body: Message


@dataclass(frozen=True, slots=True)
class Due(Event):
    """A result should be decided soon: if it is not, another proposer is needed."""


@dataclass(frozen=True, slots=True)
class Reviewed(Event):
    """Whether we may vote for an entry."""

    entry: Digest
    is_approved: bool


@dataclass(frozen=True, slots=True)
class LogEnds(Event):
    """`peer` says that its log ends with this number."""

    peer: PeerId
    number: int


@dataclass(frozen=True, slots=True)
class WrongState(Event):
    """Our state is not what the round builds on: so say others, or so the log proves."""

    is_proven: bool


@dataclass(frozen=True, slots=True)
class Behind(Event):
    """Rounds up to this one are decided, and we cannot follow one by one, or ours is the wrong state: catch up."""

    round: int


@dataclass(frozen=True, slots=True)
class Doubted(Event):
    """The round waits for `peer`, which has said nothing for a while: is it alive?"""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """Nobody that we reach has the bytes of the last result."""

    entry: int

"""What the parts of a round work with, and what they tell: the application, or the member around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.shelf import Decision, Shelf
from shoal.protocol.base.effects import Event
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.log import Register, Result
from shoal.protocol.rounds.agreement.roster import Policy
from shoal.protocol.rounds.matchmaking.context import View
from shoal.protocol.rounds.matchmaking.followers import Followers


@dataclass(frozen=True, slots=True)
class Base:
    """What a round builds on: the state after `round`, and which entry of the log decided it."""

    round: int
    entry: int  # 0: the run's first state
    history: Digest
    root: Digest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the log has decided for a round."""

    number: int  # of the entry
    result: Result
    roster: tuple[PeerId, ...]  # whom its masks are about


class LogView(Protocol):
    """What rounds need to know of the log."""

    @property
    def register(self) -> Register: ...

    @property
    def proposer(self) -> PeerId:
        """Of the present view."""
        ...

    @property
    def view(self) -> int: ...

    @property
    def votes_here(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What all rounds of a part share."""

    us: Self
    view: View
    policy: Policy
    log: LogView
    shelf: Shelf
    outbox: Outbox
    spread: Estimate  # learned: from the first offer of a round to its last
    pace: Estimate  # learned: how long a live member is silent while it works
    followers: Followers = field(default_factory=Followers)

    @property
    def leads(self) -> bool:
        """Whether we are the proposer."""
        return self.log.votes_here and self.log.proposer == self.us.me


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
class Concluded(Event):
    """The round is decided and its bytes are here."""

    decision: Decision
    counted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class WrongState(Event):
    """Our state is not what the round builds on: so say others, or so the log proves."""

    is_proven: bool


@dataclass(frozen=True, slots=True)
class Behind(Event):
    """Rounds up to this one are decided, and we cannot follow one by one, or ours is the wrong state: catch up."""

    round: int


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """Nobody that we reach has the bytes of the last result."""

    entry: int

"""What the parts of a round work with: given once; what is learned, or comes too early, is kept in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from shoal.protocol.averaging.doubts import Doubts
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.followers import Followers
from shoal.protocol.averaging.mailbox import Mailbox
from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.policy import Base, Policy
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.membership.view import View
from shoal.protocol.messages.averaging import Progress
from shoal.protocol.messages.log import Register, Result

LATE_DOUBLINGS = 3  # so who is always late holds up one round of nine, and who was so for a while is soon asked again


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

    @property
    def view(self) -> int: ...

    @property
    def leads(self) -> bool:
        """Whether we are the proposer, and say something: then nothing that we want is lost on it."""

    @property
    def listens(self) -> bool:
        """Whether what we want of it is asked for; not while we look around after a long absence."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all rounds of a part share."""

    us: Self
    view: View
    policy: Policy
    log: LogView
    shelf: Shelf
    outbox: Outbox
    spread: Estimate  # learned: from the first offer of something in a round to its last offer
    pace: Estimate  # learned: how long a live member is silent while it works
    training: Estimate  # learned: from the beginning of a round to the first offer of something
    lasting: Estimate  # learned: from the last offer of a round until all its means are here
    early: Mailbox = field(default_factory=lambda: Mailbox(()))  # of the next round, the others' one, or this one
    followers: Followers = field(default_factory=Followers)
    doubts: Doubts = field(default_factory=Doubts)
    late: Doubts = field(default_factory=lambda: Doubts(LATE_DOUBLINGS))  # who did not hand in when it was called

    def is_far(self, peer: PeerId, base: Base) -> bool:
        """Whether `peer` is too far behind the round on this base to come in time.

        A round that builds on no state, as the last one of replicas, begins wherever one stands.
        """
        status = self.view.status(peer)
        if status is None or base.root == NO_DIGEST:
            return False
        return self.followers.is_far(peer, base.round + 1, said=status.round + 1)

    def forget_rounds(self) -> None:
        """Rounds are other ones from now on, as the log goes on on another branch."""
        for each in (self.followers, self.doubts, self.late):
            each.forget()

    def progress(self, round: int, *, is_waiting: bool, is_queued: bool) -> Progress:
        """How far we have come, for somebody who waits."""
        return Progress(self.us.part, round, self.outbox.sent_count, self.outbox.taken_count, is_waiting, is_queued)

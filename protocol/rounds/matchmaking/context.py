"""What the parts of a round work with: given once, changed by none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.rounds import Leave
from shoal.protocol.rounds.agreement.roster import Base, Policy
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.allreduce.wanted import Wanted
from shoal.protocol.rounds.matchmaking.followers import Followers


class View(Protocol):
    """What rounds need to know of membership."""

    def alive(self) -> Sequence[PeerId]:
        """Live members without ourselves, in a fixed order."""
        ...

    def is_alive(self, peer: PeerId) -> bool: ...

    def is_suspect(self, peer: PeerId) -> bool: ...

    def status(self, peer: PeerId) -> RunStatus | None: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What all rounds of a part share."""

    me: PeerId
    part: int
    signer: Signer
    view: View
    policy: Policy
    shelf: Shelf
    outbox: Outbox
    spread: Estimate  # learned: from the first JOIN of a round to its last
    pace: Estimate  # learned: how long a live member is silent while it works
    followers: Followers = field(default_factory=Followers)


@dataclass(frozen=True, slots=True)
class Context:
    """What an attempt of a round works with beside that."""

    means: Means
    base: Base
    vote: VoteState
    leaves: Callable[[], tuple[Leave, ...]]  # of voters, in this round
    wanted: Wanted  # of the attempt that is given this

"""What a round's decision is made of: the values that travel inside messages, and what is kept of votes.

LEAVE is here because certificates and rosters carry it.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, message, value


@value
class Ballot:
    """A leader's claim to propose: totally ordered by (attempt, counter, leader), used for one proposal only."""

    attempt: int
    counter: int
    leader: PeerId

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.attempt, self.counter, self.leader)


@value
class ChunkRef:
    """One chunk of a result: the hash of its bytes, and who is in it (bit i: member i of the roster)."""

    hash: Digest
    mask: bytes


@value
class Proposal:
    """What a round agrees on. Its digest is what PREPARED signs; `result` stands for the ordered ChunkRefs."""

    round: int
    part: int
    attempt: int  # whose roster it was made with
    base_history: Digest
    base_root: Digest
    result: Digest
    members: tuple[PeerId, ...]  # that roster, in order
    weights: tuple[int, ...]
    voters: tuple[PeerId, ...]  # of `members`, the old voters first: who votes on the next round
    samples: int  # tokens of the members that are counted in every chunk


@value
class PreparedValue:
    """A proposal that a member has voted for, under which ballot, and the chunks it stands for."""

    ballot: Ballot
    proposal: Proposal
    chunks: tuple[ChunkRef, ...]


@message(38)
class Leave(Message):
    """The author votes no more; its last vote travels with it, like the answer to a poll."""

    round: int
    part: int
    peer: PeerId
    promised: Ballot
    prepared: PreparedValue | None
    signature: bytes


@value
class Vote:
    """One PREPARED, as a certificate keeps it."""

    peer: PeerId
    signature: bytes


@value
class Certificate:
    """Proof that a round committed: PREPARED from quorums of the previous voters and of the new ones."""

    ballot: Ballot
    proposal: Proposal
    votes: tuple[Vote, ...]
    leaves: tuple[Leave, ...]


@message(91)
class VoteRecord(Message):
    """What a vote depends on, as it is on disk before the vote leaves. Never sent."""

    round: int
    part: int
    attempt: int  # the last one joined
    promised: Ballot
    prepared: PreparedValue | None
    left: int  # the last round that its author has signed off from; 0: none


@message(92)
class Resting(Message):
    """What follows is of a run at rest, beside the state after `round` (see rest.py). Never sent."""

    round: int
    part: int
    root: Digest

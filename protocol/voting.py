"""A member's vote on one round, and a leader's count of votes: Paxos's acceptor and proposer, without I/O.

Rules (Lamport, The Part-Time Parliament, 1998): a member answers no ballot below the highest it has promised;
it votes for at most one proposal per ballot; a new leader proposes what the highest ballot among the answers of
a quorum had prepared, and is free only if none had. A JOIN for an attempt is the promise of its first ballot.
What a vote depends on is in a VoteRecord, on disk before the vote leaves, so a restarted member may vote again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Ballot, Certificate, Leave, PreparedValue, Vote, VoteRecord
from shoal.protocol.quorum import is_quorum

NO_BALLOT = Ballot(0, 0, PeerId(""))


@dataclass(slots=True)
class VoteState:
    """The acceptor of one round."""

    round: int
    part: int
    attempt: int = 0
    promised: Ballot = NO_BALLOT
    prepared: PreparedValue | None = None

    @classmethod
    def from_record(cls, record: VoteRecord) -> VoteState:
        """What a restarted member still owes."""
        return cls(record.round, record.part, record.attempt, record.promised, record.prepared)

    def record(self) -> VoteRecord:
        """What must be on disk before a vote leaves."""
        return VoteRecord(self.round, self.part, self.attempt, self.promised, self.prepared)

    def may_join(self, attempt: int) -> bool:
        """One JOIN per attempt, and never back to an earlier one."""
        return attempt > self.attempt

    def join(self, attempt: int) -> None:
        """Promise to answer no ballot of an earlier attempt."""
        self.attempt = attempt
        self.promise(Ballot(attempt, 0, PeerId("")))

    def may_answer(self, ballot: Ballot) -> bool:
        """Whether `ballot` is not below what was promised."""
        return ballot.order >= self.promised.order

    def promise(self, ballot: Ballot) -> None:
        """Answer nothing below `ballot` from now on."""
        if ballot.order > self.promised.order:
            self.promised = ballot

    def prepare(self, value: PreparedValue) -> None:
        """Vote for `value`."""
        self.promise(value.ballot)
        self.prepared = value


Answers = Mapping[PeerId, PreparedValue | None]


def must_propose(answers: Answers, voters: Sequence[PeerId], left: Sequence[PeerId]) -> PreparedValue | None:
    """What a new leader must propose, given the promises of a quorum of `voters`; None: it is free.

    It is the value prepared under the highest ballot, unless it cannot have been decided: whoever answered without
    it will never vote for it, so the others would have to be quorums of the old and of its own voters.
    """
    prepared = [answer for answer in answers.values() if answer is not None]
    if not prepared:
        return None
    top = max(prepared, key=lambda value: value.ballot.order)
    holders = [peer for peer, answer in answers.items() if answer is not None and answer.proposal == top.proposal]

    def may_have_decided(entitled: Sequence[PeerId]) -> bool:
        possible = holders + [voter for voter in entitled if voter not in answers]
        return is_quorum(possible, entitled) or is_quorum(possible, entitled, left)

    return top if may_have_decided(voters) and may_have_decided(top.proposal.voters) else None


@dataclass(slots=True)
class Election:
    """A new leader's poll: promises for its ballot, with what each author has prepared."""

    ballot: Ballot
    answers: dict[PeerId, PreparedValue | None] = field(default_factory=dict)

    def won(self, voters: Sequence[PeerId], left: Sequence[PeerId]) -> bool:
        """Whether a quorum of the last round's voters answered."""
        return is_quorum(self.answers, voters, left)


@dataclass(slots=True)
class Tally:
    """A leader's count of PREPARED for one value."""

    value: PreparedValue
    votes: dict[PeerId, bytes] = field(default_factory=dict)

    def decided(self, voters: Sequence[PeerId], left: Sequence[PeerId]) -> bool:
        """Whether quorums of both the old and the new voters hold these very bytes."""
        return is_quorum(self.votes, voters, left) and is_quorum(self.votes, self.value.proposal.voters, left)

    def certificate(self, leaves: Iterable[Leave]) -> Certificate:
        """The proof that goes out with COMMIT."""
        votes = tuple(Vote(peer, signature) for peer, signature in sorted(self.votes.items()))
        return Certificate(self.value.ballot, self.value.proposal, votes, tuple(leaves))

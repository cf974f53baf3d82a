"""A member's vote on one round, and a leader's count of votes: Paxos's acceptor and proposer, without I/O.

Rules (Lamport, The Part-Time Parliament, 1998): a member answers no ballot below the highest it has promised;
it votes for at most one proposal per ballot; a new leader proposes what the highest ballot among the answers of
a quorum had prepared, and is free only if that cannot have been decided. A JOIN for an attempt is the promise of its
first ballot. A LEAVE is its author's last answer, to every poll whose ballot is not below its promise; under a lower
ballot it does not count, because its author has answered a higher one and the two counts need not overlap. So that an
attempt has one group at most, a group does without a JOIN only if its author has promised nothing in this attempt: else
it may be in the group of another leader.
What a vote depends on is in a VoteRecord, on disk before the vote leaves, so a restarted member may vote again in
the round of its record, and in no earlier one, because what it did there is forgotten; nor in one that it signed off
from, because others may count without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.messages.rounds import Ballot, Certificate, Leave, PreparedValue, Vote, VoteRecord
from shoal.protocol.rounds.agreement.quorum import is_quorum

NO_BALLOT = Ballot(0, 0, PeerId(""))


@dataclass(slots=True)
class VoteState:
    """The acceptor of one round."""

    round: int
    part: int
    attempt: int = 0
    promised: Ballot = NO_BALLOT
    prepared: PreparedValue | None = None
    left: int = 0  # the last round that this member has signed off from

    @classmethod
    def resume(cls, round: int, part: int, record: VoteRecord | None) -> VoteState:
        """The acceptor of `round`, for a member whose last record was this."""
        if record is None or record.round < round:
            return cls(round, part, left=record.left if record is not None else 0)
        state = cls(round, part, record.attempt, record.promised, record.prepared, record.left)
        if record.round > round:
            state.seal()
        return state

    @property
    def is_sealed(self) -> bool:
        """Whether this member has no part in the round any more: it forgot what it had said."""
        return self.attempt == MAX_INT

    @property
    def has_left(self) -> bool:
        """Whether this member has signed off from the round; if it is back, it takes part, but has no vote."""
        return self.round <= self.left

    def seal(self) -> None:
        """Take no part in this round."""
        self.attempt, self.prepared = MAX_INT, None

    def record(self) -> VoteRecord:
        """What must be on disk before a vote leaves."""
        return VoteRecord(self.round, self.part, self.attempt, self.promised, self.prepared, self.left)

    def may_join(self, attempt: int) -> bool:
        """One JOIN per attempt, and never back to an earlier one."""
        return self.attempt < attempt < MAX_INT

    def join(self, attempt: int) -> None:
        """Promise to answer no ballot of an earlier attempt; without a vote there is nothing to promise."""
        self.attempt = attempt
        if not self.has_left:
            self.promise(Ballot(attempt, 0, PeerId("")))

    def may_answer(self, ballot: Ballot) -> bool:
        """Whether `ballot` is not below what was promised."""
        return not self.is_sealed and not self.has_left and ballot.order >= self.promised.order

    def promise(self, ballot: Ballot) -> None:
        """Answer nothing below `ballot` from now on."""
        if ballot.order > self.promised.order:
            self.promised = ballot

    def prepare(self, value: PreparedValue) -> None:
        """Vote for `value`."""
        self.promise(value.ballot)
        self.prepared = value


Answers = Mapping[PeerId, PreparedValue | None]


def counting(leaves: Iterable[Leave], ballot: Ballot) -> tuple[Leave, ...]:
    """The leaves that count under `ballot`."""
    return tuple(leave for leave in leaves if leave.promised.order <= ballot.order)


def left_before(leaves: Iterable[Leave], attempt: int) -> tuple[Leave, ...]:
    """The leaves that count for a group of `attempt`: not those of authors who may have joined it elsewhere."""
    return tuple(leave for leave in leaves if leave.promised.attempt < attempt)


def must_propose(answers: Answers, leaves: Sequence[Leave], voters: Sequence[PeerId]) -> PreparedValue | None:
    """What a new leader must propose, given the promises of a quorum of `voters`; None: it is free.

    It is the value that `voters` have prepared under the highest ballot: whatever was decided, one of them that
    answered has prepared. Nobody else can put a value in its place; those whom the value names as its own voters are
    heard about their votes on it, and all others about nothing.
    The leader is free if that value cannot have been decided: whoever answered without it will never vote for it, so
    the others would have to be quorums of the old and of its own voters. `leaves` count under the leader's ballot;
    whoever decided may have known any of them.
    """
    answers = {**answers, **{leave.peer: leave.prepared for leave in leaves}}
    prepared = _shown(answers, voters)
    if not prepared:
        return None
    top = max(prepared, key=lambda value: value.ballot.order)
    holders = {peer for peer, answer in answers.items() if answer is not None and answer.proposal == top.proposal}

    def may_have_decided(entitled: Sequence[PeerId]) -> bool:
        possible = holders.union(voter for voter in entitled if voter not in answers)
        return is_quorum(possible, entitled, {leave.peer for leave in leaves if leave.peer not in possible})

    return top if may_have_decided(voters) and may_have_decided(top.proposal.voters) else None


def may_matter(answers: Answers, leaves: Sequence[Leave], voters: Sequence[PeerId]) -> tuple[Leave, ...]:
    """The leaves of `voters`, and of those whom a value that may be decided names; who else signs off is nobody."""
    answers = {**answers, **{leave.peer: leave.prepared for leave in leaves}}
    entitled = {*voters, *(voter for value in _shown(answers, voters) for voter in value.proposal.voters)}
    return tuple(leave for leave in leaves if leave.peer in entitled)


def _shown(answers: Answers, voters: Sequence[PeerId]) -> list[PreparedValue]:
    """What those who vote have prepared."""
    return [value for voter in voters if (value := answers.get(voter)) is not None]


@dataclass(slots=True)
class Election:
    """A new leader's poll: promises for its ballot, with what each author has prepared."""

    ballot: Ballot
    answers: dict[PeerId, PreparedValue | None] = field(default_factory=dict)

    def won(self, voters: Sequence[PeerId], leaves: Iterable[Leave]) -> bool:
        """Whether a quorum of the last round's voters answered."""
        return is_quorum(self.answers, voters, [leave.peer for leave in counting(leaves, self.ballot)])


@dataclass(slots=True)
class Tally:
    """A leader's count of PREPARED for one value."""

    value: PreparedValue
    votes: dict[PeerId, bytes] = field(default_factory=dict)

    def decided(self, voters: Sequence[PeerId], leaves: Iterable[Leave]) -> bool:
        """Whether quorums of both the old and the new voters hold these very bytes."""
        left = [leave.peer for leave in counting(leaves, self.value.ballot)]
        return is_quorum(self.votes, voters, left) and is_quorum(self.votes, self.value.proposal.voters, left)

    def certificate(self, voters: Sequence[PeerId], leaves: Iterable[Leave]) -> Certificate:
        """The proof that goes out with COMMIT."""
        ballot, proposal = self.value.ballot, self.value.proposal
        entitled = {*voters, *proposal.voters}
        votes = tuple(Vote(peer, signature) for peer, signature in sorted(self.votes.items()) if peer in entitled)
        left = tuple(leave for leave in counting(leaves, ballot) if leave.peer in entitled)
        return Certificate(ballot, proposal, votes, left)

"""The commit of one round: single-decree Paxos among the last round's voters, and by the new ones.

    leader                          members
    PREPARE(ballot, proposal) ────► promise; get the bytes it names; record the vote
              ◄──────────────────── PREPARED (signed)
    quorums of old and new voters
    COMMIT(certificate) ──────────► apply

A leader that is lost is followed by a member that POLLs with a higher ballot, learns from the PROMISEs what may
already be decided, and proposes that, or goes on with the reduction if nothing was prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Event, Persist, Send, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.messages.rounds import (
    Ballot,
    Certificate,
    ChunkRef,
    Leave,
    Poll,
    Prepare,
    Prepared,
    PreparedValue,
    Promise,
    Proposal,
    Refuse,
)
from shoal.protocol.rounds.agreement.certificate import check_value, proposal_digest
from shoal.protocol.rounds.agreement.roster import Base
from shoal.protocol.rounds.agreement.voting import NO_BALLOT, Election, Tally, VoteState, counting, must_propose

MAX_COUNTER = 2**62  # of a ballot: nobody gets there by counting, and all agree on who is beyond it


@dataclass(frozen=True, slots=True)
class Proposed(Event):
    """A proposal is on the table: get its bytes, then vote."""

    value: PreparedValue


@dataclass(frozen=True, slots=True)
class Elected(Event):
    """We lead now, and nothing was prepared before: go on with the reduction."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """Our own count found both quorums."""

    certificate: Certificate
    chunks: tuple[ChunkRef, ...]


@dataclass(frozen=True, slots=True)
class Overtaken(Event):
    """`peer` has promised a higher ballot than ours."""

    peer: PeerId
    promised: Ballot


class Commit:
    """One member's side of one round's decision."""

    def __init__(
        self,
        me: PeerId,
        base: Base,
        chunks: int,
        vote: VoteState,
        signer: Signer,
        leaves: Callable[[], tuple[Leave, ...]],
    ) -> None:
        self._me = me
        self._base = base
        self._chunks = chunks  # of this part
        self._vote = vote
        self._signer = signer
        self._leaves = leaves
        self._members: tuple[PeerId, ...] = ()
        self._election: Election | None = None
        self._tally: Tally | None = None
        self.ballot = NO_BALLOT  # the highest one seen in this attempt; its leader is the leader
        self.value: PreparedValue | None = None  # what that leader proposes

    @property
    def leader(self) -> PeerId:
        """Who leads now."""
        return self.ballot.leader

    @property
    def may_propose(self) -> bool:
        """Whether we lead, nothing is proposed under our ballot, and no poll is open."""
        return self.leader == self._me and self._tally is None and self._election is None

    @property
    def is_polling(self) -> bool:
        """Whether our poll is open."""
        return self._election is not None

    @property
    def needs_bytes(self) -> bool:
        """Whether there is a proposal that we have not voted for."""
        return self.value is not None and self._vote.prepared != self.value

    def open(self, ballot: Ballot, members: tuple[PeerId, ...]) -> None:
        """A group was formed: its leader's first ballot holds until a higher one is seen."""
        self._members = members
        self._election = self._tally = self.value = None
        self.ballot = ballot

    # -- leading --------------------------------------------------------------------------------------------

    def propose(self, proposal: Proposal, chunks: tuple[ChunkRef, ...]) -> list[Effect]:
        """Put a result to the vote under our ballot; once per ballot."""
        if not self.may_propose:
            return []
        value = PreparedValue(self.ballot, proposal, chunks)
        self._tally = Tally(value)
        self.value = value
        return [*self._to_others(self._prepare_message(value)), Tell(Proposed(value))]

    def take_over(self) -> list[Effect]:
        """Claim the lead with a higher ballot than any seen; if there can be none, the attempt must end without us."""
        ballot = Ballot(self.ballot.attempt, self._next_counter(), self._me)
        if ballot.counter > MAX_COUNTER or not self._vote.may_answer(ballot):
            return []
        self._adopt_ballot(ballot)
        self._election = Election(ballot, {self._me: self._vote.prepared})
        part, round = self._vote.part, self._vote.round
        effects: list[Effect] = [self._persist(), *self._to_others(Poll(round, part, ballot))]
        return effects + self._conclude_election()

    def repeat(self, to: PeerId) -> list[Effect]:
        """What the leader says to somebody who may have missed it."""
        if self._tally is not None and to not in self._tally.votes:
            return [Send(to, self._prepare_message(self._tally.value))]
        if self._election is not None and to not in self._election.answers:
            return [Send(to, Poll(self._vote.round, self._vote.part, self._election.ballot))]
        return []

    def unanswered(self) -> list[PeerId]:
        """Members that owe the leader a vote or a promise."""
        answers = self._tally.votes if self._tally else self._election.answers if self._election else None
        return [] if answers is None else [peer for peer in self._members if peer not in answers]

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive_poll(self, sender: PeerId, message: Poll) -> list[Effect]:
        """A new leader asks for our promise."""
        self._check_leader(sender, message.ballot)
        if not self._vote.may_answer(message.ballot):
            return [Send(sender, self._refusal())]
        self._adopt_ballot(message.ballot)
        promise = Promise(self._vote.round, self._vote.part, message.ballot, self._vote.prepared)
        return [self._persist(), Send(sender, promise)]

    def receive_promise(self, sender: PeerId, message: Promise) -> list[Effect]:
        """An answer to our poll."""
        if self._election is None or message.ballot != self._election.ballot:
            return []
        if message.prepared is not None:
            check_value(message.prepared, self._base, self._chunks, sender)
            if message.prepared.ballot.order >= message.ballot.order:
                raise RemoteError("promises a ballot that it has voted above", sender)
        self._election.answers[sender] = message.prepared
        return self._conclude_election()

    def receive_prepare(self, sender: PeerId, message: Prepare) -> list[Effect]:
        """A leader proposes."""
        self._check_leader(sender, message.ballot)
        value = PreparedValue(message.ballot, message.proposal, message.chunks)
        check_value(value, self._base, self._chunks, sender)
        if value.proposal.base_root != self._base.root:
            raise RemoteError("proposes a result on another state than ours", sender)
        if not self._vote.may_answer(message.ballot):
            return [Send(sender, self._refusal())]
        if self.value is not None and self.value.ballot == value.ballot and self.value != value:
            raise RemoteError("proposes two results under one ballot", sender)
        self._adopt_ballot(message.ballot)
        self.value = value
        if self._vote.prepared == value:  # our vote was lost on its way
            return [Send(sender, self._sign_vote(value))]
        return [Tell(Proposed(value))]

    def bytes_held(self) -> list[Effect]:
        """We hold every byte that the proposal names: vote."""
        value = self.value
        if value is None or not self._vote.may_answer(value.ballot):
            return []
        self._vote.prepare(value)
        vote = self._sign_vote(value)
        effects: list[Effect] = [self._persist()]
        if value.ballot.leader == self._me:
            return effects + self._count(vote)
        return [*effects, Send(value.ballot.leader, vote)]

    def receive_prepared(self, sender: PeerId, message: Prepared) -> list[Effect]:
        """A vote for our proposal."""
        if self._tally is None or message.ballot != self._tally.value.ballot:
            return []
        if message.peer != sender or message.proposal != proposal_digest(self._tally.value.proposal):
            raise RemoteError("votes for something that was not proposed", sender)
        check_signature(message, sender, self._signer)
        return self._count(message)

    def receive_refuse(self, sender: PeerId, message: Refuse) -> list[Effect]:
        """Somebody has promised a higher ballot than ours."""
        if message.promised.order <= self.ballot.order:
            return []
        return [Tell(Overtaken(sender, message.promised))]

    # -- inside ---------------------------------------------------------------------------------------------

    def _sign_vote(self, value: PreparedValue) -> Prepared:
        digest = proposal_digest(value.proposal)
        vote = Prepared(self._vote.round, self._vote.part, value.ballot, digest, self._me, b"")
        return signed(vote, self._signer)

    def _seen_counter(self) -> int:
        promised = self._vote.promised
        return max(self.ballot.counter, promised.counter if promised.attempt == self.ballot.attempt else 0)

    def _next_counter(self) -> int:
        """The lowest counter above all seen that is ours: no two members use the same, so epochs are unique too."""
        seen = self._seen_counter()
        place, size = self._members.index(self._me), len(self._members)
        return seen + 1 + (place - seen - 1) % size

    def _check_leader(self, sender: PeerId, ballot: Ballot) -> None:
        if ballot.leader != sender:
            raise RemoteError("uses somebody else's ballot", sender)
        if ballot.counter > MAX_COUNTER:
            raise RemoteError("uses a ballot absurdly far ahead", sender)

    def _adopt_ballot(self, ballot: Ballot) -> None:
        self._vote.promise(ballot)
        if ballot.order > self.ballot.order:
            self.ballot = ballot
            self._election = self._tally = self.value = None

    def _conclude_election(self) -> list[Effect]:
        election, leaves = self._election, self._leaves()
        if election is None or not election.won(self._base.voters, leaves):
            return []
        self._election = None
        found = must_propose(election.answers, counting(leaves, election.ballot), self._base.voters)
        if found is None:
            return [Tell(Elected(election.ballot))]
        return self.propose(found.proposal, found.chunks)

    def _count(self, vote: Prepared) -> list[Effect]:
        tally = self._tally
        if tally is None or tally.value.ballot != vote.ballot:
            return []
        tally.votes[vote.peer] = vote.signature
        return self.recount()

    def recount(self) -> list[Effect]:
        """Count again: a vote came in, or a voter signed off."""
        if self._election is not None:
            return self._conclude_election()
        tally, leaves = self._tally, self._leaves()
        if tally is None or not tally.decided(self._base.voters, leaves):
            return []
        return [Tell(Decided(tally.certificate(self._base.voters, leaves), tally.value.chunks))]

    def _prepare_message(self, value: PreparedValue) -> Prepare:
        return Prepare(self._vote.round, self._vote.part, value.ballot, value.proposal, value.chunks)

    def _refusal(self) -> Refuse:
        return Refuse(self._vote.round, self._vote.part, self._vote.promised)

    def _persist(self) -> Persist:
        return Persist(f"vote-{self._vote.part}", self._vote.record())

    def _to_others(self, message: Poll | Prepare) -> list[Effect]:
        return [Send(peer, message) for peer in self._members if peer != self._me]

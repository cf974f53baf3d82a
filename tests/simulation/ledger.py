"""Counts the votes of a simulated swarm as they are written or sent: what is decided, even if nobody is told.

Rules:
- A value is decided once quorums of the old voters and of its own have voted for it under one ballot. A voter that
  signed off without a vote for it, and promised nothing higher, need not be counted. No other value of the round may
  ever be decided.
- A vote, a promise and a LEAVE say what is on their author's disk, and what is there is never taken back.
- A ballot has one value, and a member that signed off votes no more.

All is counted independently of the cores; only the digests of signed values are computed by their functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from shoal.protocol.base.effects import Effect, Persist, Send
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.messages.rounds import (
    Ballot,
    Join,
    Leave,
    Prepared,
    PreparedValue,
    Promise,
    Proposal,
    VoteRecord,
)
from shoal.protocol.rounds.agreement.certificate import genesis, next_history, proposal_digest
from tests.simulation.promises import Violation
from tests.simulation.signing import check_signed

RUN = RunId(bytes(range(32)))  # the run that is simulated
Voters = tuple[PeerId, ...]


def holds_quorum(votes: Collection[PeerId], voters: Sequence[PeerId], left: Collection[PeerId]) -> bool:
    """More than half of those voters that have not left, or exactly half with the first of them."""
    entitled = [voter for voter in voters if voter not in left]
    twice = 2 * sum(voter in votes for voter in entitled)
    return twice > len(entitled) or (0 < twice == len(entitled) and entitled[0] in votes)


class Ledger:
    """All votes, promises and LEAVEs so far, and what they decide."""

    def __init__(self, creator: PeerId) -> None:
        self.decided: dict[int, Proposal] = {}
        self.leaves: dict[int, dict[PeerId, Leave]] = defaultdict(dict)
        self._creator = creator
        self._votes: dict[int, dict[Ballot, tuple[Proposal, list[PeerId]]]] = defaultdict(dict)
        self._last_votes: dict[tuple[PeerId, int], PreparedValue] = {}
        self._promises: dict[tuple[PeerId, int], Ballot] = {}
        self._disks: dict[PeerId, VoteRecord] = {}

    @property
    def newest(self) -> int:
        """The last round that is decided."""
        return max(self.decided, default=0)

    def voters_after(self, round: int) -> Voters | None:
        """The voters of the round after this one; None while this one is undecided."""
        if round == 0:
            return (self._creator,)
        return self.decided[round].voters if round in self.decided else None

    def history(self, round: int) -> Digest:
        """The history digest after a decided round."""
        return next_history(self.decided[round]) if round else genesis(RUN, 0)

    def last_vote(self, peer: PeerId, round: int) -> PreparedValue | None:
        """The last value that `peer` voted for in `round`."""
        return self._last_votes.get((peer, round))

    def on_disk(self, peer: PeerId) -> VoteRecord | None:
        """The votes that `peer` will remember after a crash."""
        return self._disks.get(peer)

    def has_voted(self, peer: PeerId, ballot: Ballot, proposal: Proposal) -> bool:
        """Whether this very vote was cast."""
        value, voted = self._votes[proposal.round].get(ballot, (None, []))
        return value == proposal and peer in voted

    # -- what goes out -------------------------------------------------------------------------------------

    def saw(self, peer: PeerId, effect: Effect) -> None:
        """An effect of `peer` is about to be carried out."""
        if isinstance(effect, Persist):
            if isinstance(effect.record, VoteRecord):
                self._persisted(peer, effect.record)
            return
        assert isinstance(effect, Send)
        match effect.message:
            case Prepared() as vote:
                self._check_vote(peer, vote)
            case Promise() as promise:
                self._check_answer(peer, promise.round, promise.ballot, promise.prepared)
            case Join() as join:
                self._check_answer(peer, join.round, Ballot(join.attempt, 0, PeerId("")), join.prepared)
            case Leave() as leave:
                self._left(leave.peer, leave)

    def _persisted(self, peer: PeerId, record: VoteRecord) -> None:
        promised = self._promises.get((peer, record.round), record.promised)
        if record.promised.order < promised.order:
            raise Violation("Agreement", f"{peer} takes back its promise of {promised}")
        self._promises[peer, record.round] = record.promised
        if record.prepared is not None and record.prepared != self.last_vote(peer, record.round):
            self._vote(peer, record.prepared)
        self._disks[peer] = record

    def _vote(self, peer: PeerId, value: PreparedValue) -> None:
        proposal = value.proposal
        if peer in self.leaves[proposal.round]:
            raise Violation("Agreement", f"{peer} votes in round {proposal.round}, from which it has signed off")
        if (record := self._disks.get(peer)) is not None and proposal.round < record.round:
            raise Violation("Agreement", f"{peer} votes in round {proposal.round}, which it has forgotten")
        of_ballot, voted = self._votes[proposal.round].setdefault(value.ballot, (proposal, []))
        if of_ballot != proposal:
            raise Violation("Agreement", f"two values of round {proposal.round} under {value.ballot}")
        self._last_votes[peer, proposal.round] = value
        voted.append(peer)
        self._judge(value.ballot, proposal, voted)

    def _left(self, peer: PeerId, leave: Leave) -> None:
        if self.leaves[leave.round].get(peer) == leave:
            return
        check_signed(leave, peer)
        promised = self._promises.get((peer, leave.round), leave.promised)
        if leave.promised.order < promised.order or leave.prepared != self.last_vote(peer, leave.round):
            raise Violation("Agreement", f"{peer} signs off from round {leave.round} with a vote that is not its last")
        self.leaves[leave.round][peer] = leave
        for ballot, (proposal, voted) in list(self._votes[leave.round].items()):
            self._judge(ballot, proposal, voted)

    def _check_vote(self, peer: PeerId, vote: Prepared) -> None:
        check_signed(vote, peer)
        value = self.last_vote(peer, vote.round)
        if value is None or (value.ballot, proposal_digest(value.proposal)) != (vote.ballot, vote.proposal):
            raise Violation("Agreement", f"{peer} sends a vote on round {vote.round} that is not on its disk")

    def _check_answer(self, peer: PeerId, round: int, ballot: Ballot, prepared: PreparedValue | None) -> None:
        if peer in self.leaves[round]:  # its last answer is its LEAVE
            return
        promised = self._promises.get((peer, round))
        if promised is None or promised.order < ballot.order:
            raise Violation("Agreement", f"{peer} sends a promise in round {round} that is not on its disk")
        if prepared != self.last_vote(peer, round):
            raise Violation("Agreement", f"{peer} does not tell its last vote in round {round}")

    # -- what follows --------------------------------------------------------------------------------------

    def _judge(self, ballot: Ballot, proposal: Proposal, voted: list[PeerId]) -> None:
        """Whether a leader could count `voted` as quorums."""
        old = self.voters_after(proposal.round - 1)
        if old is None:
            raise Violation(
                "Agreement", f"round {proposal.round} is voted on before round {proposal.round - 1} is decided"
            )
        leaves = self.leaves[proposal.round]
        left = [peer for peer in leaves if peer not in voted and leaves[peer].promised.order <= ballot.order]
        if not (holds_quorum(voted, old, left) and holds_quorum(voted, proposal.voters, left)):
            return
        if self.decided.setdefault(proposal.round, proposal) != proposal:
            raise Violation("Agreement", f"two values of round {proposal.round} are decided")

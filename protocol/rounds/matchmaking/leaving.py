"""Signing off: from which rounds a member does, and who has done so from which.

Let V be the last round that a member has joined. It may be a voter in V, and in V + 1, because the proposal of V may
name it; in no later one, because it has joined no roster there. So it signs off from these two, with one LEAVE each,
wherever it stands itself: in V, applying what V decided, in V + 1, or catching up.

A LEAVE is safe to count if its author never votes in that round again. Of V it tells all that the author has said:
its promise, and what it prepared. In V + 1 the author has said nothing yet. A record that ends its voting in both is
on disk before the first LEAVE goes out, so it is also safe if some have heard it and others not: a leader who counts
without the leaver needs a quorum of the rest; one who still counts it gets no vote of it, and needs no fewer of them.

Somebody always keeps its vote, even if all go at the same time: nobody signs off when no other voter is left, and of
those who go at once the first in the order of the voters goes last. It waits a moment for the others' LEAVEs
(`parting`), and with them it can decide alone when it is back.

So it does not matter when a LEAVE arrives, how often, or in what order: it means one round of its author, and says
always the same. Whoever has heard it passes it on to the leader that it follows, which may have been away when it was
said. Who comes back says it again, and takes part without a vote; from V + 2 on, of which no LEAVE speaks, it is a
newcomer like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.rounds import Leave, VoteRecord
from shoal.protocol.rounds.agreement.certificate import check_chunks
from shoal.protocol.rounds.agreement.quorum import is_quorum
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.matchmaking.context import Means

MAX_STRANGERS = 1024  # that do not vote, and whose goodbyes are kept nevertheless
VOTERS_BYTES, STRANGERS_BYTES = 128 << 20, 16 << 20
ROUNDS_EACH = 2  # that one member signs off from at once
FIRST_WAITS = 2.0  # seconds, at most
OTHERS_WAIT = 1.0  # so that they have gone before the first voter gives up
AHEAD = 2  # rounds: who votes in V + 1 was in the group of V, so it stands on V - 1 at least


def leave_of(vote: VoteState, signer: Signer) -> Leave:
    """What somebody who signs off says of a round: the same whenever it says it, because it votes there no more."""
    return signed(Leave(vote.round, vote.part, signer.peer, vote.promised, vote.prepared, b""), signer)


@dataclass(frozen=True, slots=True)
class Departure:
    """What it would mean if a member went now."""

    means: Means
    voted: VoteRecord | None  # its last record
    vote: VoteState | None  # in the round that is open
    undecided: int  # the lowest round that is not decided here
    voters: tuple[PeerId, ...]  # of that round
    left: tuple[PeerId, ...]  # who has signed off from it

    @property
    def successors(self) -> list[PeerId]:
        """Who can decide without it: the other voters that live and have not signed off.

        A member that stands before its last record does not know who votes now; it may be any of those that live.
        """
        return [peer for peer in self._present() if not self.means.view.is_suspect(peer)]

    @property
    def keeps_vote(self) -> bool:
        """Whether it votes in the undecided round, and has not signed off from it."""
        return self.means.me in self.voters and (self.voted is None or self.voted.left < self.undecided)

    @property
    def voted_last(self) -> int:
        """The last round that it has joined; 0: none."""
        return self.voted.round if self.voted is not None else 0

    @property
    def has_signed_off(self) -> bool:
        """Whether it has left, as far as its last record says."""
        return self.voted is not None and self.voted.left > self.voted.round

    @property
    def is_ahead(self) -> bool:
        """Whether it has applied what the first of its successors, who goes last if all go, is not known to have."""
        status = self.means.view.status(self.successors[0]) if self.successors else None
        return status is None or status.round + 1 < self.undecided

    @property
    def patience(self) -> float:
        """Seconds that it had better wait before it goes.

        The first voter lets all others go first, and hears their LEAVEs: they may be leaving, too, or be gone already.
        What a member has voted for is to be decided, and what is decided to be known to those who stay.
        """
        earlier = self.voters[: self.voters.index(self.means.me)] if self.keeps_vote else ()
        if self.keeps_vote and not any(peer in self.successors for peer in earlier):
            missed = [peer for peer in self.voters if peer not in (self.means.me, *self.left)]
            return FIRST_WAITS if missed else 0.0
        return OTHERS_WAIT if self._present() and (self.is_ahead or self.has_voted) else 0.0

    @property
    def must_keep(self) -> bool:
        """Whether the run may need what it holds: the state, as who keeps the vote may be killed, or other bytes."""
        return self.means.me in self.voters or self.is_ahead or self.has_voted

    @property
    def has_voted(self) -> bool:
        """Whether it has prepared a value in the round that is open."""
        return self.vote is not None and self.vote.prepared is not None

    def _can_be_done_without(self) -> bool:
        if self.undecided < self.voted_last:
            return bool(self.successors)
        return is_quorum(self.successors, self.voters, (self.means.me, *self.left))

    def _present(self) -> list[PeerId]:
        """The successors, and those who do not answer now."""
        view = self.means.view
        if self.undecided < self.voted_last:
            return list(view.alive())
        return [peer for peer in self.voters if peer not in (self.means.me, *self.left) and view.is_alive(peer)]

    def last_words(self) -> list[Leave]:
        """Its LEAVEs.

        None, if it has joined no round, or if those who stay could not decide without it: who goes without a word is
        only missing, and may come back with its vote.
        """
        if self.voted is None or not self._can_be_done_without():
            return []
        last, part = self.voted.round, self.means.part
        votes = [VoteState.resume(round, part, self.voted) for round in (last, last + 1)]
        return [leave_of(vote, self.means.signer) for vote in votes]


def last_of_interest(undecided: int, voted: VoteRecord | None) -> int | None:
    """The last round whose LEAVEs are kept while `undecided` is ours; None: we do not know yet where we stand.

    Who was started again may stand far behind, but its record says in which round it last joined a group.
    """
    return max(undecided, voted.round if voted is not None else 0) + AHEAD if undecided else None


class Goodbyes:
    """The LEAVEs of this round and of later ones. Each round checks for itself what they say of their authors' votes.

    They outlive the round that they are for: a member that goes back to an earlier state needs them again. Bounded in
    bytes, those of voters and those of others apart; whoever keeps to an equal share of its budget always has room.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._leaves: dict[PeerId, dict[int, Leave]] = {}
        self._sizes: dict[PeerId, int] = {}  # in bytes, of what is kept of each

    def __repr__(self) -> str:
        return f"Goodbyes({len(self._leaves)})"

    def admit(self, leave: Leave, last: int | None, voters: Sequence[PeerId]) -> bool:
        """Whether a LEAVE is of interest, being of a round up to `last`, and there is room for it."""
        if last is not None and leave.round > last:
            return False
        votes = leave.peer in voters
        others = [peer for peer in self._leaves if peer != leave.peer and (peer in voters) == votes]
        if not votes and (len(others) >= MAX_STRANGERS or self._means.view.status(leave.peer) is None):
            return False
        budget, places = (VOTERS_BYTES, len(voters)) if votes else (STRANGERS_BYTES, MAX_STRANGERS)
        own = _size(self._with(leave))
        return own <= budget // places or own + sum(self._sizes[peer] for peer in others) <= budget

    def keep(self, leave: Leave) -> None:
        """Remember a LEAVE of any round; RemoteError, naming its author, if it is forged or holds too much."""
        means, value = self._means, leave.prepared
        if value is not None:
            check_chunks(value.proposal, value.chunks, means.policy.chunks_in(leave.round), leave.peer)
        check_signature(leave, leave.peer, means.signer)
        self._put(leave.peer, self._with(leave))

    def has(self, leave: Leave) -> bool:
        """Whether it is kept already: others pass on what they have heard."""
        return self._leaves.get(leave.peer, {}).get(leave.round) == leave

    def of(self, round: int) -> tuple[Leave, ...]:
        """Who has signed off from `round`."""
        return tuple(leaves[round] for leaves in self._leaves.values() if round in leaves)

    def all(self) -> tuple[Leave, ...]:
        """Whatever is kept."""
        return tuple(leave for leaves in self._leaves.values() for leave in leaves.values())

    def keep_only(self, first: int, last: int | None) -> None:
        """We stand before round `first`: what is before that is decided, and what is after `last` was invented."""
        for peer, leaves in list(self._leaves.items()):
            self._put(peer, {at: each for at, each in leaves.items() if first <= at and (last is None or at <= last)})

    def _with(self, leave: Leave) -> dict[int, Leave]:
        """What we hold of its author, with `leave`: the latest rounds."""
        kept = self._leaves.get(leave.peer, {}) | {leave.round: leave}
        return {round: kept[round] for round in sorted(kept)[-ROUNDS_EACH:]}

    def _put(self, peer: PeerId, leaves: dict[int, Leave]) -> None:
        if leaves:
            self._leaves[peer], self._sizes[peer] = leaves, _size(leaves)
        elif peer in self._leaves:
            del self._leaves[peer], self._sizes[peer]


def _size(leaves: dict[int, Leave]) -> int:
    return sum(len(encode(leave)) for leave in leaves.values())

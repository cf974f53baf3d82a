"""Signing off: from which rounds a member does, and who has done so from which.

Let V be the last round that a member has joined. It may be a voter in V, and in V + 1, because the proposal of V may
name it; in no later one, because it has joined no roster there. So it signs off from these two, with one LEAVE each,
wherever it stands itself: in V, applying what V decided, in V + 1, or catching up.

A LEAVE is safe to count if its author never votes in that round again. Of V it tells all that the author has said:
its promise, and what it prepared. In V + 1 the author has said nothing yet. A record that ends its voting in both is
on disk before the first LEAVE goes out, so it is also safe if some have heard it and others not: a leader who counts
without the leaver needs a quorum of the rest; one who still counts it gets no vote of it, and needs no fewer of them.

So it does not matter when a LEAVE arrives, how often, or in what order: it means one round of its author, and says
always the same. Who comes back says it again, and takes part without a vote; from V + 2 on, of which no LEAVE speaks,
it is a newcomer like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.context import Means
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Leave, VoteRecord
from shoal.protocol.signing import Signer, check_signature, signed
from shoal.protocol.voting import VoteState

MAX_AUTHORS = 1024  # whose goodbyes are kept, beside those of voters
ROUNDS_EACH = 2  # that one member signs off from at once


def leave_of(vote: VoteState, signer: Signer) -> Leave:
    """What somebody who signs off says of a round: the same whenever it says it, because it votes there no more."""
    return signed(Leave(vote.round, vote.part, signer.peer, vote.promised, vote.prepared, b""), signer)


def last_words(means: Means, voted: VoteRecord | None, undecided: int, voters: Sequence[PeerId]) -> list[Leave]:
    """The LEAVEs of a member whose last record is `voted`, and for whom `voters` decide the round `undecided` next.

    None, if it has joined no round, or if no other voter is there to decide without it: who goes without a word is
    only missing, and may come back with its vote.
    """
    others = [voter for voter in voters if voter != means.me and means.view.is_alive(voter)]
    if voted is None or (not others and undecided >= voted.round):  # below that we do not know who votes now
        return []
    votes = [VoteState.resume(round, means.part, voted) for round in (voted.round, voted.round + 1)]
    return [leave_of(vote, means.signer) for vote in votes]


class Goodbyes:
    """The LEAVEs of this round and of later ones. Each round checks for itself what they say of their authors' votes.

    They outlive the round that they are for: a member that goes back to an earlier state needs them again.
    """

    def __init__(self, chunks: int, signer: Signer) -> None:
        self._chunks = chunks
        self._signer = signer
        self._leaves: dict[PeerId, dict[int, Leave]] = {}

    def __repr__(self) -> str:
        return f"Goodbyes({len(self._leaves)})"

    def has_room_for(self, peer: PeerId, voters: Sequence[PeerId]) -> bool:
        """Whether a LEAVE of `peer` is taken: strangers have only so much room, `voters` always."""
        return peer in voters or peer in self._leaves or len(self._leaves) < MAX_AUTHORS

    def keep(self, leave: Leave) -> None:
        """Remember a LEAVE of any round; RemoteError, naming its author, if it is forged or holds too much."""
        if leave.prepared is not None and len(leave.prepared.chunks) != self._chunks:
            raise RemoteError("signs off with a vote for something that is no result", leave.peer)
        check_signature(leave, leave.peer, self._signer)
        kept = self._leaves.get(leave.peer, {}) | {leave.round: leave}
        self._leaves[leave.peer] = {round: kept[round] for round in sorted(kept)[-ROUNDS_EACH:]}

    def of(self, round: int) -> tuple[Leave, ...]:
        """Who has signed off from `round`."""
        return tuple(leaves[round] for leaves in self._leaves.values() if round in leaves)

    def forget_before(self, round: int) -> None:
        """These rounds are decided."""
        left = {peer: {at: leave for at, leave in kept.items() if at >= round} for peer, kept in self._leaves.items()}
        self._leaves = {peer: kept for peer, kept in left.items() if kept}

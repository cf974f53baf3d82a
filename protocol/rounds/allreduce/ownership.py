"""Who owns which chunk of a reduction, and since when: the plan, and what leaders have moved since.

Rules: only a leader moves a chunk; each move has a higher epoch (counter of its ballot, sequence number), no two
leaders of an attempt share a counter, and a move whose epoch is not higher is ignored. So any two members that
have seen the same moves, in whatever order, agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Assignment
from shoal.protocol.rounds.agreement.roster import Plan

Epoch = tuple[int, int]


class Ownership:
    """The owners of all chunks, as one member knows them."""

    def __init__(self, plan: Plan) -> None:
        self._members = plan.members
        self._first = plan.owners
        self._ways = plan.ways
        self._owners = list(plan.owners)
        self._epochs: list[Epoch] = [(0, 0)] * len(plan.owners)

    def __len__(self) -> int:
        return len(self._owners)

    def of(self, chunk: int) -> PeerId:
        """The owner of a chunk."""
        return self._owners[chunk]

    def epoch(self, chunk: int) -> Epoch:
        """Since which move it owns it."""
        return self._epochs[chunk]

    def chunks(self, owner: PeerId) -> list[int]:
        """The chunks of one owner."""
        return [chunk for chunk, peer in enumerate(self._owners) if peer == owner]

    def follow(self, move: Assignment) -> PeerId | None:
        """Make a move; who owned the chunk before, or None for a move that is out of date."""
        if move.epoch <= self._epochs[move.chunk]:
            return None
        before = self._owners[move.chunk]
        self._owners[move.chunk], self._epochs[move.chunk] = move.owner, move.epoch
        return before

    def moves(self, chunks: Sequence[int], lost: Collection[PeerId], epoch: Epoch) -> tuple[Assignment, ...]:
        """A leader's move of `chunks`: those of the lost go to the fittest of the live in turn, owners first."""
        live = [peer for peer in self._members if peer not in lost]
        heirs = self._ways.fittest([peer for peer in live if peer in self._first] or live, live)
        places = [self._owners[chunk] for chunk in chunks]
        owners = [heirs[turn % len(heirs)] if owner in lost else owner for turn, owner in enumerate(places)]
        return tuple(Assignment(chunk, owner, epoch) for chunk, owner in zip(chunks, owners, strict=True))

    def moved(self) -> tuple[Assignment, ...]:
        """Every chunk that was ever moved, as it stands now."""
        owned = enumerate(zip(self._owners, self._epochs, strict=True))
        return tuple(Assignment(chunk, owner, epoch) for chunk, (owner, epoch) in owned if epoch > (0, 0))

    def send_order(self, me: PeerId) -> list[int]:
        """All chunks, interleaved by owner and begun at another owner by each member: nobody is everybody's first."""
        place = self._members.index(me) + 1
        shares = [self.chunks(member) for member in self._members[place:] + self._members[:place]]
        return [chunk for turn in zip_longest(*shares) for chunk in turn if chunk is not None]

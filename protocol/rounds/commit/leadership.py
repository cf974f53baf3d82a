"""What the leader of a group does beside counting votes, and how somebody becomes one.

Rules: the leader gives the chunks of the lost to others; who takes over from a lost leader renews the owners of all
that it lacks, because it may not know what its predecessor had moved; who may have missed something is told again.
"""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import PreparedValue
from shoal.protocol.rounds.allreduce.allreduce import AllReduce
from shoal.protocol.rounds.commit.commit import Commit
from shoal.protocol.rounds.commit.headway import Headway
from shoal.protocol.rounds.commit.succession import Succession


class Leadership:
    """One member's part in leading its group, now or later."""

    def __init__(
        self,
        me: PeerId,
        commit: Commit,
        reduce: AllReduce | None,
        succession: Succession,
        headway: Headway,
        pace: Estimate,
    ) -> None:
        self._me = me
        self._commit = commit
        self._reduce = reduce
        self._succession = succession
        self._headway = headway
        self._pace = pace
        self._sequence = 0

    @property
    def is_ours(self) -> bool:
        """Whether we lead now."""
        return self._commit.leader == self._me

    def replace_lost(self, now: float) -> list[Effect]:
        """Somebody is lost: move its chunks, if we lead; see who leads next, if it led."""
        if self.is_ours:
            return self._reassign(now, everything=False)
        if self._commit.leader in self._succession.lost:
            self._succession.leader_lost(now, self._pace.deadline())
        return self.take_over_if_due(now)

    def take_over_if_due(self, now: float) -> list[Effect]:
        """Poll the group, if the leader is lost and it is our turn."""
        if not self._succession.is_our_turn(now) or self._commit.leader not in self._succession.lost:
            return []
        return self._commit.take_over()

    def go_on(self, now: float, adopted: PreparedValue | None) -> list[Effect]:
        """Elected, and free: propose what the JOINs obliged the group to, or go on with the reduction."""
        if self._reduce is None and adopted is not None:
            return self._commit.propose(adopted.proposal, adopted.chunks)
        return self._reassign(now, everything=True)

    def repeat(self, peer: PeerId) -> list[Effect]:
        """Say again what `peer` may have missed."""
        if not self.is_ours:
            return []
        moved = self._reduce.moved(self._commit.ballot) if self._reduce is not None else None
        return [*([Send(peer, moved)] if moved is not None else []), *self._commit.repeat(peer)]

    def _reassign(self, now: float, everything: bool) -> list[Effect]:
        if self._reduce is None or self._commit.is_polling:
            return []
        self._sequence += 1
        message = self._reduce.reassignment(self._commit.ballot, self._sequence, everything)
        if message is None:
            return []
        self._headway.wait_anew(now)
        others = [peer for peer in self._succession.live() if peer != self._me]
        return [*(Send(peer, message) for peer in others), *self._reduce.reassign(self._me, message.assignments)]

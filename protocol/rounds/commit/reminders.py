"""What a member says to those that it has waited for, and answers those that have waited for it."""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Ask, Roster, Want
from shoal.protocol.rounds.allreduce.allreduce import AllReduce
from shoal.protocol.rounds.commit.leadership import Leadership
from shoal.protocol.rounds.matchmaking.context import Means


class Reminders:
    """One group's; changes nothing."""

    def __init__(self, means: Means, roster: Roster, reduce: AllReduce | None, leadership: Leadership) -> None:
        self._outbox = means.outbox
        self._roster = roster
        self._reduce = reduce
        self._leadership = leadership

    def remind(self, peer: PeerId) -> list[Effect]:
        """We lack something from `peer`."""
        effects = self._reduce.lacking.want(peer) if self._reduce is not None else []
        if self._leadership.is_ours:
            return effects + self._leadership.repeat(peer)
        return [*effects, Send(peer, Ask(self._roster.round, self._roster.part, self._roster.attempt))]

    def answer(self, sender: PeerId, message: Ask) -> list[Effect]:
        """Somebody has heard nothing for a while, or lacks the roster."""
        is_new = message.attempt < self._roster.attempt
        first = [Send(sender, self._roster)] if is_new else self.say_busy(sender)
        return first + self._leadership.repeat(sender)

    def answer_want(self, now: float, sender: PeerId, message: Want) -> list[Effect]:
        """Send what we have of it and is not on its way, and say how far we are."""
        wanted = self._reduce.receive_want(sender, message) if self._reduce is not None else []
        fresh = self._outbox.fresh(now, wanted)
        return fresh + self.say_busy(sender, is_waiting=not wanted, is_queued=len(fresh) < len(wanted))

    def say_busy(self, to: PeerId, *, is_waiting: bool = False, is_queued: bool = False) -> list[Effect]:
        """We have nothing for `to` now, but live; and how far we are."""
        roster = self._roster
        busy = self._outbox.busy(roster.round, roster.part, roster.attempt, is_waiting=is_waiting, is_queued=is_queued)
        return [Send(to, busy)]

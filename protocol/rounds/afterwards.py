"""What a member answers those who are still in a round that it has decided: the decision, or its bytes."""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages import rounds as wire
from shoal.protocol.rounds.fetching import answer_fetch
from shoal.protocol.rounds.matchmaking.context import Means
from shoal.protocol.rounds.stages import round_of


def answer_late(means: Means, now: float, sender: PeerId, message: Message) -> list[Effect]:
    """The answer to a message of a decided round; nothing to what needs none."""
    match message:
        case wire.Fetch():
            effects = answer_fetch(means, now, sender, message)
            means.outbox.note(now, effects)
            return effects
        case wire.Want():
            return [*_say_what_waits(means, sender, message), *_tell_decided(means, sender, message)]
        case wire.Ask() | wire.Join() | wire.Poll() | wire.Prepare():
            return _tell_decided(means, sender, message)
    return []


def _tell_decided(means: Means, sender: PeerId, message: Message) -> list[Effect]:
    return means.shelf.answer(sender, wire.Ask(round_of(message), means.part, 0))


def _say_what_waits(means: Means, sender: PeerId, message: wire.Want) -> list[Effect]:
    """What we owed it of that round may still be in our queue; else others have it."""
    if not means.outbox.holds(sender, message.round):
        return []
    return [Send(sender, means.outbox.busy(message.round, message.part, message.attempt, is_queued=True))]

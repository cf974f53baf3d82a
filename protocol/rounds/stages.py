"""To which round and attempt a message belongs."""

from __future__ import annotations

from shoal.protocol.base.wire import Message
from shoal.protocol.messages import rounds as wire


def round_of(message: Message) -> int:
    """The round that a message of rounds is about."""
    if isinstance(message, wire.Commit):
        return message.certificate.proposal.round
    round: int = getattr(message, "round")  # noqa: B009 - every other one has the field
    return round


def attempt_of(message: Message) -> int:
    """The attempt that a message within a group is about."""
    match message:
        case wire.Poll() | wire.Promise() | wire.Prepare() | wire.Prepared() | wire.Reassign():
            return message.ballot.attempt
        case wire.Refuse():
            return message.promised.attempt
    attempt: int = getattr(message, "attempt")  # noqa: B009 - every other one has the field
    return attempt

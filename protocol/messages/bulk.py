"""Calls by which two peers agree on a socket for payloads (see shoal.protocol.net.bulk)."""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message


class Flow(IntEnum):
    """The kind of a payload.

    SCATTER: a contribution to a chunk, which its owner may have to hold until others have arrived; it needs credit.
    GATHER: any other payload, which its receiver has asked for or can use at once.
    """

    SCATTER = 0
    GATHER = 1


@message(100)
class MayIKnock(Message):
    """Call: may I dial you, and send you payloads on that socket? Answered by Knock."""


@message(101)
class Knock(Message):
    """Answer to MayIKnock: dial me like this. As a call: dial me like this, and receive payloads on that socket."""

    ports: tuple[int, ...]  # at the hosts at which the other end knows the sender
    fingerprint: Digest  # BLAKE3 of the certificate that is shown there
    token: bytes


@message(102)
class Knocked(Message):
    """Answer to Knock as a call: whether a connection was made."""

    came: bool

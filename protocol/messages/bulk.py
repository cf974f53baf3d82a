"""Calls by which two peers agree on a socket for payloads (see shoal.protocol.net.bulk)."""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, message


class Flow(IntEnum):
    """What kind of payload.

    SCATTER are contributions on their way to a chunk's owner, who may have to hold them until others have arrived: they
    need credit. GATHER is everything else, which its receiver has asked for, or can use at once.
    """

    SCATTER = 0
    GATHER = 1


@message(100)
class MayIKnock(Message):
    """Call: let me dial you, and send you payloads there."""


@message(101)
class Knock(Message):
    """Answer: dial me like this. As a call: dial me like this, and get payloads from me there."""

    ports: tuple[int, ...]  # at the hosts where the other end knows me
    fingerprint: Digest  # BLAKE3 of the certificate that it finds there
    token: bytes


@message(102)
class Knocked(Message):
    """Answer to Knock: whether it came to a connection."""

    came: bool

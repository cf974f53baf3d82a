"""Bytes of rounds, asked for by hash, and how far somebody is with sending."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, Payload, message


@message(30)
class Fetch(Message):
    """Send me the chunk of this hash."""

    round: int
    part: int
    chunk: int
    hash: Digest


@message(31)
class Fetched(Message):
    """A chunk's bytes, asked for by hash."""

    bulk = True
    round: int
    part: int
    chunk: int
    mask: bytes
    payload: Payload


@message(42)
class Busy(Message):
    """The answer to somebody who has waited: `I am at work`, and how far I have come."""

    round: int
    part: int
    attempt: int  # 0: about a Fetch, which knows none
    sent: int  # payloads, in its whole life so far
    taken: int
    is_waiting: bool  # nothing of what was asked for is here: it needs others first
    is_queued: bool  # some of it is on its way already

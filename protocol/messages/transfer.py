"""State transfer: one pinned version of the state, and its chunks by hash."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, Payload, message


@message(52)
class GetState(Message):
    """Asks to pin a version of the state: that of `round`; or, if it is 0, any certified one from `least` on."""

    part: int
    round: int
    least: int


@message(53)
class StateIs(Message):
    """The version after `round`: its layout and the hashes of its chunks. It is pinned while chunks are asked for."""

    part: int
    round: int
    layout: bytes
    chunks: tuple[Digest, ...]


@message(54)
class GetStateChunk(Message):
    """Asks for one chunk of the pinned version."""

    part: int
    round: int
    index: int


@message(55)
class StateChunk(Message):
    """A chunk's bytes; empty if the version is no longer pinned."""

    bulk = True
    part: int
    round: int
    index: int
    payload: Payload


@message(58)
class HaveChunks(Message):
    """Says to others that download a version, too, which of its chunks have come to the sender: a bit for each.

    The first chunk is the lowest bit of the first byte. `root` names the version.
    """

    part: int
    round: int
    root: Digest
    chunks: bytes


TRANSFER_MESSAGES = GetState | StateIs | GetStateChunk | StateChunk | HaveChunks
"""All that a member takes from others about states."""

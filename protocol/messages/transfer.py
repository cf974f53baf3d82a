"""State transfer: the chain of certified rounds, one pinned version of the state, and its chunks by hash."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, Payload, message
from shoal.protocol.messages.rounds import Certificate


@message(50)
class GetChain(Message):
    """Asks for the certificates of the rounds after `after`."""

    part: int
    after: int


@message(51)
class Chain(Message):
    """Certificates of consecutive rounds, oldest first; `newest` is the last round of which the sender has one."""

    part: int
    certificates: tuple[Certificate, ...]
    newest: int


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

"""State transfer: the chain of certified rounds, one pinned version of the state, its chunks by hash."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Message, Payload, message
from shoal.protocol.messages.rounds import Certificate


@message(50)
class GetChain(Message):
    """Send me the certificates of the rounds after `after`."""

    part: int
    after: int


@message(51)
class Chain(Message):
    """Certificates of consecutive rounds, oldest first; `newest` is the last round there is one of."""

    part: int
    certificates: tuple[Certificate, ...]
    newest: int


@message(52)
class GetState(Message):
    """Pin a version of the state for me: that of `round`; or, if it is 0, any certified one from `least` on."""

    part: int
    round: int
    least: int


@message(53)
class StateIs(Message):
    """The version after `round`: its layout and the hashes of its chunks. Pinned while chunks are asked for."""

    part: int
    round: int
    layout: bytes
    chunks: tuple[Digest, ...]


@message(54)
class GetStateChunk(Message):
    """One chunk of the pinned version."""

    part: int
    round: int
    index: int


@message(55)
class StateChunk(Message):
    """Its bytes; empty if the version is pinned no more."""

    bulk = True
    part: int
    round: int
    index: int
    payload: Payload

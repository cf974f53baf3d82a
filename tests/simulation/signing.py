"""Cheap signatures for simulations: a keyed hash that everyone can check, since nobody keeps secrets here."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import check_signature
from shoal.protocol.base.wire import Message
from tests.simulation.promises import Violation

SIZE = 16


@dataclass(frozen=True, slots=True)
class FakeSigner:
    """Signs as `peer`."""

    peer: PeerId

    def sign(self, data: bytes) -> bytes:
        """A tag that depends on the author and the data."""
        return _tag(self.peer, data)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        """Whether `author` made this tag for this data."""
        return _tag(author, data) == signature


def _tag(author: PeerId, data: bytes) -> bytes:
    return blake3(author.encode() + b"\0" + data).digest(length=SIZE)


def check_signed(message: Message, author: PeerId) -> None:
    """Violation unless `author` signed `message`."""
    try:
        check_signature(message, author, FakeSigner(author))
    except RemoteError as error:
        raise Violation("Agreement", str(error)) from None

"""Cheap signatures for simulations: a keyed hash that everyone can check, since nobody keeps secrets here."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from shoal.protocol.ids import PeerId

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

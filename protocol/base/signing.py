"""Signed messages, which are shown to third parties.

A signed message has a field `signature`, last; the signature covers the message's canonical bytes with that
field empty, in the context of one run, so that nothing signed for one run means anything in another.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, TypeVar

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, encode


class Signer(Protocol):
    """Signs as `peer` and verifies others' signatures, in the context of one run."""

    @property
    def peer(self) -> PeerId: ...

    def sign(self, data: bytes) -> bytes: ...

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool: ...


S = TypeVar("S", bound=Message)


def signed(message: S, signer: Signer) -> S:
    """`message` with our signature in its last field."""
    unsigned = _replace_signature(message, b"")
    return _replace_signature(unsigned, signer.sign(encode(unsigned)))


def check_signature(message: Message, author: PeerId, signer: Signer, shown_by: PeerId | None = None) -> None:
    """Raises RemoteError unless `author` signed `message`; it names `shown_by`, a peer that passes it on, if given."""
    signature: bytes = message.signature  # type: ignore[attr-defined]
    if not signer.verify(author, encode(_replace_signature(message, b"")), signature):
        raise RemoteError(f"{type(message).__name__} has a forged or missing signature", shown_by or author)


def _replace_signature(message: S, signature: bytes) -> S:
    return dataclasses.replace(message, signature=signature)  # type: ignore[type-var]

"""A signature holds for one author, one message and one run, and for nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import check_signature, signed
from shoal.protocol.base.wire import Message, decode, encode, message

ALICE, BOB = PeerId("alice"), PeerId("bob")


@message(9_010)
class Vow(Message):
    """A signed message of the tests."""

    round: int
    voters: tuple[PeerId, ...]
    signature: bytes


@message(9_011)
class Oath(Message):
    """The same fields under another tag."""

    round: int
    voters: tuple[PeerId, ...]
    signature: bytes


class KeyedSigner:
    """Signs with a hash keyed by author and run: all that the rules below need of a signature."""

    def __init__(self, peer: PeerId, run: bytes = b"run") -> None:
        self.peer, self.run = peer, run

    def sign(self, data: bytes) -> bytes:
        return self._mac(self.peer, data)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self._mac(author, data), signature)

    def _mac(self, author: PeerId, data: bytes) -> bytes:
        return hmac.digest(author.encode() + b"/" + self.run, data, hashlib.sha256)


VOW = Vow(round=4, voters=(ALICE, BOB), signature=b"")


def test_a_signed_message_passes_also_after_the_wire() -> None:
    vow = signed(VOW, KeyedSigner(ALICE))
    assert (vow.round, vow.voters) == (VOW.round, VOW.voters)
    check_signature(vow, ALICE, KeyedSigner(BOB))
    check_signature(decode(encode(vow)), ALICE, KeyedSigner(BOB))


def test_signing_covers_the_message_without_its_old_signature() -> None:
    once = signed(VOW, KeyedSigner(ALICE))
    assert signed(once, KeyedSigner(ALICE)) == once


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(VOW, id="missing"),
        pytest.param(dataclasses.replace(signed(VOW, KeyedSigner(ALICE)), round=5), id="field changed"),
        pytest.param(dataclasses.replace(signed(VOW, KeyedSigner(ALICE)), voters=(BOB, ALICE)), id="reordered"),
        pytest.param(signed(VOW, KeyedSigner(BOB)), id="signed by another"),
        pytest.param(signed(VOW, KeyedSigner(ALICE, run=b"other")), id="signed for another run"),
        pytest.param(
            Oath(VOW.round, VOW.voters, signed(VOW, KeyedSigner(ALICE)).signature),
            id="another type of message",
        ),
    ],
)
def test_a_forged_message_is_refused_and_its_claimed_author_named(forged: Message) -> None:
    with pytest.raises(RemoteError, match=r"forged or missing signature") as caught:
        check_signature(forged, ALICE, KeyedSigner(BOB))
    assert caught.value.peer == ALICE

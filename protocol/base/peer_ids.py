"""PeerIDs as text, and the Ed25519 keys that they are made of.

A PeerID is the public key itself: base58 of the identity multihash of libp2p's protobuf PublicKey.

The protobuf is written by hand, because the CLI must be able to name a node without importing libp2p.
"""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId

KEY_SIZE = 32
MAX_PEER_ID = 64
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# field 1, varint, Ed25519 = 1; field 2, bytes, their length
PUBLIC_PREFIX = bytes([0x08, 0x01, 0x12, KEY_SIZE])
HEAD = bytes([0x00, len(PUBLIC_PREFIX) + KEY_SIZE]) + PUBLIC_PREFIX  # of an identity multihash: the "hash" is the key


def peer_of_key(key: bytes) -> PeerId:
    """libp2p's PeerID of an Ed25519 public key ("12D3Koo...")."""
    return PeerId(_base58(HEAD + key))


def key_of_peer(peer: PeerId) -> bytes:
    """The 32 bytes of the public key inside a PeerID; ValueError if it is not the PeerID of an Ed25519 key."""
    raw = _unbase58(peer)
    if len(raw) != len(HEAD) + KEY_SIZE or not raw.startswith(HEAD):
        raise ValueError("not the PeerID of an Ed25519 key")
    return raw[len(HEAD) :]


def _base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    letters = []
    while number:
        number, remainder = divmod(number, 58)
        letters.append(BASE58[remainder])
    zeros = len(raw) - len(raw.lstrip(b"\0"))  # leading zero bytes are lost in the number
    return "1" * zeros + "".join(reversed(letters))


def _unbase58(text: str) -> bytes:
    if len(text) > MAX_PEER_ID:
        raise ValueError("too long for a PeerID")
    number = 0
    for letter in text:
        number = number * 58 + BASE58.index(letter)
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")

"""Ids of peers and runs, and digests. Plain values, so that cores can hash, sort and print them."""

from __future__ import annotations

from typing import NewType

from blake3 import blake3

PeerId = NewType("PeerId", str)
"""A libp2p PeerID in base58: the public key of a peer (for Ed25519) or its hash."""

Digest = NewType("Digest", bytes)
"""32 bytes of BLAKE3."""

RunId = NewType("RunId", bytes)
"""32 bytes: the hash of a run's manifest, its author and a nonce (messages/genesis.py)."""

DIGEST_SIZE = 32
NO_DIGEST = Digest(bytes(DIGEST_SIZE))


def digest(domain: str, *parts: bytes) -> Digest:
    """BLAKE3 of `parts`, each prefixed with its length; digests of different domains never coincide."""
    hasher = blake3(derive_key_context=f"shoal v1 {domain}")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return Digest(hasher.digest())


def content_hash(payload: bytes | bytearray | memoryview) -> Digest:
    """BLAKE3 of a chunk's bytes: the name under which it is agreed on and fetched."""
    return Digest(blake3(payload).digest())


def result_hash(mask: bytes, payload: bytes | bytearray | memoryview) -> Digest:
    """BLAKE3 of a reduced chunk: of its contributors' mask and its bytes, so that neither can be replaced."""
    return Digest(blake3(len(mask).to_bytes(8, "little") + mask).update(payload).digest())


def short(value: bytes | str) -> str:
    """A short form for logs: the first hex digits of a digest, the end of a PeerID."""
    return value.hex()[:8] if isinstance(value, bytes) else value[-6:]

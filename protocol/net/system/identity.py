"""A node's identity: an Ed25519 key, its libp2p PeerID, and signatures that are valid in one run only.

Rules:
- A PeerID is the public key itself (protocol/base/peer_ids.py), so it is enough to check signatures, and there is no
  table of keys.
- The key file holds libp2p's protobuf PrivateKey (Ed25519: seed and public key) and is readable by its owner only. It
  is created whole or not at all; an existing file is never overwritten.
- A signature is over a digest of (run, data); `None` means "no run", which is a context of its own.
- `verify` returns False for garbage of any kind, as its input comes from strangers.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId, digest
from shoal.protocol.base.peer_ids import KEY_SIZE, key_of_peer, peer_of_key
from shoal.protocol.base.signing import Signer
from shoal.protocol.net.system.private_file import create_private

PRIVATE_PREFIX = bytes([0x08, 0x01, 0x12])


class Identity:
    """A key pair and its PeerID."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer = peer_of_key(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        """A new random identity, not stored anywhere."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte seed, which is the secret."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The identity in the file `path`, created if there is none; LocalError if the file is unusable."""
        try:
            if not path.exists():
                cls.generate().keep(path)
            return _load(path)
        except OSError as error:
            made = "no-room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "home-unusable"
            code = "secret-unreadable" if os.path.exists(path) else made
            raise LocalError(f"cannot use the key file {path}: {error.strerror}", code=code) from error

    def keep(self, path: Path) -> None:
        """Write the key file unless it exists; OSError if that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        create_private(path, _encoded(self))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes from which the key pair is derived."""
        return self._key.private_bytes_raw()

    def signer(self, run: RunId | None) -> Signer:
        """A signer and verifier in the context of `run`; None: outside of any run."""
        return RunSigner(self, run)

    def sign_digest(self, value: bytes) -> bytes:
        """The signature over a digest, whose context is already part of it."""
        return self._key.sign(value)


class RunSigner:
    """The `Signer` of one identity in one run."""

    def __init__(self, identity: Identity, run: RunId | None) -> None:
        self._identity = identity
        self._context: bytes = run or b""

    @property
    def peer(self) -> PeerId:
        return self._identity.peer

    def sign(self, data: bytes) -> bytes:
        return self._identity.sign_digest(digest("signature", self._context, data))

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        try:
            public_key(author).verify(signature, digest("signature", self._context, data))
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


# -- PeerIDs ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def public_key(peer: PeerId) -> Ed25519PublicKey:
    """The public key inside a PeerID; ValueError if it is not the PeerID of an Ed25519 key."""
    return Ed25519PublicKey.from_public_bytes(key_of_peer(peer))


# -- the key file -------------------------------------------------------------------------------------------


def _encoded(identity: Identity) -> bytes:
    """The content of the key file: libp2p's protobuf PrivateKey."""
    secret = identity.seed + public_key(identity.peer).public_bytes_raw()
    return PRIVATE_PREFIX + bytes([len(secret)]) + secret


def _load(path: Path) -> Identity:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise LocalError(
            f"the key file {path} is open to other users (mode {mode:o}): run `chmod 600 {path}`, "
            "or delete it and get a new identity if somebody may have read it. Where its file system knows no modes, "
            "choose another folder",
            code="secret-open",
        )
    seed = _seed(path.read_bytes())
    if seed is None:
        raise LocalError(
            f"{path} is not an Ed25519 key in libp2p's form; move it away and a new identity is made",
            code="secret-damaged",
        )
    return Identity.of_seed(seed)


def _seed(data: bytes) -> bytes | None:
    """The seed in a protobuf PrivateKey, with or without the public key behind it; None if it is malformed."""
    body = data[len(PRIVATE_PREFIX) + 1 :]
    if data[: len(PRIVATE_PREFIX) + 1] != PRIVATE_PREFIX + bytes([len(body) & 0xFF]):
        return None
    if len(body) not in (KEY_SIZE, 2 * KEY_SIZE, 3 * KEY_SIZE):
        return None
    seed = body[:KEY_SIZE]
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    copies = body[KEY_SIZE:]
    return seed if copies == public * (len(copies) // KEY_SIZE) else None

"""The genesis of a run: its manifest, whose it is, and a nonce. The run's id is the hash of these three.

So nobody else is the author of a run, and whoever founds from one manifest twice has two runs. The author's signature
is over nothing but the id, which is the context of all signatures of a run. A genesis travels within messages, and lies
on disk within records.
"""

from __future__ import annotations

from hashlib import sha256

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId, digest
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import value

NONCE_SIZE = 16  # bytes
SIGNED_AS = b"shoal genesis\0"  # so that the signature is valid for nothing else that is signed in the run


@value
class Genesis:
    """What a run begins with. Only `check_genesis` says that its author wrote it."""

    manifest: bytes  # canonical
    author: PeerId
    nonce: bytes
    signature: bytes

    @property
    def run(self) -> RunId:
        """The id of the run."""
        return run_id(manifest_digest(self.manifest), self.author, self.nonce)


def manifest_digest(manifest: bytes) -> Digest:
    """The SHA-256 of canonical bytes: what runs of one manifest have in common."""
    return Digest(sha256(manifest).digest())


def run_id(manifest: Digest, author: PeerId, nonce: bytes) -> RunId:
    """The id of the run that `author` founds of the manifest with this digest."""
    return RunId(digest("run id", manifest, author.encode(), nonce))


def sign_genesis(manifest: bytes, nonce: bytes, signer: Signer) -> Genesis:
    """The genesis that `signer`, the author in the context of the run with this nonce, signs."""
    return Genesis(manifest, signer.peer, nonce, signer.sign(SIGNED_AS))


def check_genesis(genesis: Genesis, signer: Signer, shown_by: PeerId | None = None) -> None:
    """RemoteError, naming `shown_by`, unless its author has signed it; `signer` verifies in the context of its run."""
    if len(genesis.nonce) != NONCE_SIZE:
        raise RemoteError(f"shows a run with a nonce of {len(genesis.nonce)} bytes", shown_by or genesis.author)
    if not signer.verify(genesis.author, SIGNED_AS, genesis.signature):
        raise RemoteError("the run's author has not signed its manifest", shown_by or genesis.author)

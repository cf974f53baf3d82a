"""Records for tests: signed with real keys, or unsigned where no signature is checked."""

from __future__ import annotations

from shoal.dht.record import MAX_SUBKEY, MAX_VALUE, RECORDS, make_record
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.signing import Signer
from shoal.protocol.messages.dht import Record
from shoal.protocol.net.system.identity import Identity

NOW = 1_800_000_000
HOUR = 3600
ALICE, BOB, CAROL = (Identity.of_seed(name.encode() * 32) for name in "abc")


def key_of(name: str) -> Digest:
    return digest("test key", name.encode())


KEY = key_of("run")


def signer_of(identity: Identity) -> Signer:
    return identity.signer(RECORDS)


def signed_record(
    author: Identity = ALICE,
    key: Digest = KEY,
    subkey: str = "",
    value: bytes = b"here",
    sequence: int = 1,
    expires: int = NOW + HOUR,
) -> Record:
    return make_record(key, subkey, value, sequence, expires, signer_of(author))


def unsigned(
    author: str,
    key: Digest = KEY,
    subkey: str = "",
    value: bytes = b"",
    sequence: int = 1,
    expires: int = NOW + HOUR,
) -> Record:
    return Record(key, PeerId(author), subkey, value, sequence, expires, b"")


def largest(author: PeerId, key: Digest, number: int) -> Record:
    """An unsigned record that takes as much memory as one record can."""
    subkey = f"{number:0{MAX_SUBKEY - 1}}\U0001f41f"  # one wide letter makes Python keep four bytes for each
    return Record(key, author, subkey, bytes(MAX_VALUE), 2**40 + number, NOW + HOUR + number % 5000, b"")

"""Records: values that peers sign and store under a key, until a time that the author names.

Rules:
- A record is checked before it is stored or believed, the cheap checks first. The peer that shows a bad one is blamed,
  not the author that the record names.
- The version of an entry with the highest `rank` is the newest; all nodes order versions alike.
- Clocks differ by up to MAX_SKEW, so an expired record may be shown in good faith: it raises `Expired`, so that callers
  can treat it differently.
- A signature is checked once for each version, if the signer is a `CachingSigner`.
"""

from __future__ import annotations

from collections import OrderedDict

from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId, content_hash, digest
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.dht import Record

RECORDS = RunId(digest("dht records"))  # the context of the signatures, so that they are not valid in any run
MAX_VALUE = 1024  # bytes
MAX_SUBKEY = 64  # characters
MAX_AUTHOR = 64  # characters; the PeerID of an Ed25519 key has 52
MAX_SIGNATURE = 64  # bytes: Ed25519
MAX_SEQUENCE = 2**53  # more than microseconds since 1970; out of reach by counting
MAX_LIFE = 24 * 3600  # seconds between now and a record's end
MAX_SKEW = 300  # seconds by which the clocks of author and reader may differ
REMEMBERED = 8192  # versions

Slot = tuple[Digest, PeerId, str]
"""The entry of which a record is a version: key, author and subkey."""


class Expired(RemoteError):
    """The record has expired, by our clock; its sender may still be honest."""


def slot_of(record: Record) -> Slot:
    """The entry of which `record` is a version."""
    return record.key, record.author, record.subkey


def rank(record: Record) -> tuple[int, int, bytes]:
    """Higher is newer: by sequence, then by expiry, then (if an author made two by mistake) by hash."""
    return record.sequence, record.expires, content_hash(encode(record))


def make_record(key: Digest, subkey: str, value: bytes, sequence: int, expires: int, signer: Signer) -> Record:
    """A signed record of our own; raises LocalError if no server would accept it."""
    record = Record(key, signer.peer, subkey, value, sequence, expires, b"")
    if fault := _fault(record):
        raise LocalError(f"the record {fault}; make it smaller", code="too-large")
    return signed(record, signer)


def check_record(record: Record, now: float, signer: Signer, shown_by: PeerId) -> None:
    """Raises RemoteError, naming `shown_by`, unless its author signed `record` and it may be held now.

    The RemoteError is an Expired if the record has expired.
    """
    if fault := _fault(record):
        raise RemoteError(f"a record {fault}", shown_by)
    if record.expires <= now:
        raise Expired(f"a record expired {now - record.expires:.0f} s ago", shown_by)
    if record.expires > now + MAX_LIFE + MAX_SKEW:
        raise RemoteError(f"a record would last {record.expires - now:.0f} s, over {MAX_LIFE}", shown_by)
    check_signature(record, record.author, signer, shown_by)


def _fault(record: Record) -> str | None:
    """What is wrong with a record regardless of time and signature."""
    if len(record.value) > MAX_VALUE:
        return f"has a value of {len(record.value)} bytes, over {MAX_VALUE}"
    if len(record.subkey) > MAX_SUBKEY:
        return f"has a subkey of {len(record.subkey)} characters, over {MAX_SUBKEY}"
    if not 0 < len(record.author) <= MAX_AUTHOR:
        return "has an author whose name is no PeerID"
    if len(record.signature) > MAX_SIGNATURE:
        return f"has a signature of {len(record.signature)} bytes"
    if record.sequence > MAX_SEQUENCE:
        return f"has the sequence number {record.sequence}, which nobody gets to by counting"
    return None


class CachingSigner:
    """A signer that caches the last `most` good signatures and does not verify them again (150 bytes each)."""

    def __init__(self, signer: Signer, most: int = REMEMBERED) -> None:
        self._signer, self._most = signer, most
        self._good: OrderedDict[Digest, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"CachingSigner({len(self._good)} of {self._most})"

    @property
    def peer(self) -> PeerId:
        return self._signer.peer

    def sign(self, data: bytes) -> bytes:
        return self._signer.sign(data)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        name = digest("dht verified", author.encode(), data, signature)
        if name in self._good:
            self._good.move_to_end(name)
            return True
        if not self._signer.verify(author, data, signature):
            return False
        self._good[name] = None
        if len(self._good) > self._most:
            self._good.popitem(last=False)
        return True

"""Calls between servers and clients of the DHT, their answers, and the records that they carry.

A record is put at `COPIES` places of the id space, derived from its key (shoal.dht.keys), so that an attacker whose
ids lie next to one place does not hold all of it. Requests name the key and the number of the place.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, message, value


@value
class Contact:
    """A peer and the addresses at which it may be reached."""

    peer: PeerId
    addresses: tuple[str, ...]


@message(93)
class Record(Message):
    """A value that `author` stores under `key`: the highest sequence wins; it is dropped at `expires`."""

    key: Digest
    author: PeerId
    subkey: str  # distinguishes several records of one author under one key
    value: bytes
    sequence: int
    expires: int  # seconds since 1970
    signature: bytes


@message(73)
class Greet(Message):
    """Call: a greeting. `serves`: others may enter the sender in their tables, query it and store with it."""

    addresses: tuple[str, ...]
    serves: bool


@message(74)
class Greeted(Message):
    """Answer to Greet: the same about the greeted node, and its clock in seconds since 1970."""

    addresses: tuple[str, ...]
    serves: bool
    clock: int


@message(75)
class FindNode(Message):
    """Call: the known servers nearest to `target`."""

    target: Digest


@message(76)
class Nodes(Message):
    """Answer: at most K servers, nearest first, without the answering one."""

    closer: tuple[Contact, ...]


@message(77)
class FindRecords(Message):
    """Call: the records held under `key` at its place `copy`, of these (author, subkey) pairs only unless empty."""

    key: Digest
    copy: int
    subkeys: tuple[tuple[PeerId, str], ...]


@message(78)
class Records(Message):
    """Answer: as many records as fit, freshest first; how many are held; and servers nearer to the place."""

    records: tuple[Record, ...]
    held: int
    closer: tuple[Contact, ...]


@message(79)
class Store(Message):
    """Call: hold these records, which belong at the place `copy` of their keys."""

    records: tuple[Record, ...]
    copy: int


class StoreResult(IntEnum):
    """The result of storing one record. After TOO_FAR the sender looks for nearer servers; the others are shown."""

    HELD = 0
    EXPIRED = 1  # by the clock of the answering server
    OUTDATED = 2  # a newer version is held
    TOO_FAR = 3  # enough servers are nearer to its place
    NO_ROOM_FOR_AUTHOR_UNDER_KEY = 4
    NO_ROOM_FOR_AUTHOR = 5
    NO_ROOM_FOR_SENDER = 6
    KEY_IS_FULL = 7
    STORE_IS_FULL = 8

    @property
    def words(self) -> str:
        """The result as text for people."""
        return self.name.lower().replace("_", " ")


@message(80)
class Stored(Message):
    """Answer to Store: the result for each record, in order."""

    results: tuple[StoreResult, ...]


@message(81)
class TryMe(Message):
    """Call: dial me with new connections at these addresses, and say at which of them I answered."""

    addresses: tuple[str, ...]


@message(82)
class Reached(Message):
    """Answer to TryMe: the addresses at which the asker answered."""

    addresses: tuple[str, ...]

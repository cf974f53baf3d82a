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
    """A peer and where it may be reached."""

    peer: PeerId
    addresses: tuple[str, ...]


@message(93)
class Record(Message):
    """What `author` says under `key`: the newest sequence wins, nothing outlives `expires`."""

    key: Digest
    author: PeerId
    subkey: str  # one author may say several things under one key
    value: bytes
    sequence: int
    expires: int  # seconds since 1970
    signature: bytes


@message(73)
class Greet(Message):
    """Call: here I am. `serves`: others may put us into their tables, ask us and store with us."""

    addresses: tuple[str, ...]
    serves: bool


@message(74)
class Greeted(Message):
    """Answer to Greet: the same of the one that was greeted, and its clock in seconds since 1970."""

    addresses: tuple[str, ...]
    serves: bool
    clock: int


@message(75)
class FindNode(Message):
    """Call: which servers do you know that are nearest to `target`?"""

    target: Digest


@message(76)
class Nodes(Message):
    """Answer: at most k servers, nearest first; the one that answers is not among them."""

    closer: tuple[Contact, ...]


@message(77)
class FindRecords(Message):
    """Call: what do you hold under `key` at its place `copy`? With `subkeys`, of those only; empty: of all."""

    key: Digest
    copy: int
    subkeys: tuple[tuple[PeerId, str], ...]


@message(78)
class Records(Message):
    """Answer: records, freshest first, as many as fit; how many there are; and servers nearer to the place."""

    records: tuple[Record, ...]
    held: int
    closer: tuple[Contact, ...]


@message(79)
class Store(Message):
    """Call: hold these, which belong at the place `copy` of their keys."""

    records: tuple[Record, ...]
    copy: int


class StoreResult(IntEnum):
    """The result of storing one record. After TOO_FAR the sender looks for nearer servers; the rest is for people."""

    HELD = 0
    EXPIRED = 1  # by the clock of the one that answers
    OUTDATED = 2  # a newer version is held
    TOO_FAR = 3  # enough servers are nearer to its place
    NO_ROOM_FOR_AUTHOR_UNDER_KEY = 4
    NO_ROOM_FOR_AUTHOR = 5
    NO_ROOM_FOR_SENDER = 6
    KEY_IS_FULL = 7
    STORE_IS_FULL = 8

    @property
    def words(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


@message(80)
class Stored(Message):
    """Answer: what came of each record, in turn."""

    results: tuple[StoreResult, ...]


@message(81)
class TryMe(Message):
    """Call: dial me with new connections at these addresses, and say at which you found me."""

    addresses: tuple[str, ...]


@message(82)
class Reached(Message):
    """Answer to TryMe: the addresses at which the asker was found."""

    addresses: tuple[str, ...]

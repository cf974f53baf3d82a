"""What the replicas of one key said: the newest version of each entry, and who agrees.

A replica's word replaces its earlier ones. Records are checked before they count; who shows a bad one is blamed. An
expired one may be shown in good faith by a slow clock, and is left aside.
"""

from __future__ import annotations

from shoal.dht.clock import Wall
from shoal.dht.effects import Found
from shoal.dht.record import Expired, Slot, check_record, rank, slot_of
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.dht import Record
from shoal.protocol.signing import Signer

Rank = tuple[int, int, bytes]


class Tally:
    """Counts the replicas of the entries under one key."""

    def __init__(self, key: Digest, subkeys: tuple[tuple[PeerId, str], ...], signer: Signer, wall: Wall) -> None:
        self._key, self._wall = key, wall
        self._subkeys = dict.fromkeys(subkeys)
        self._signer = signer
        self._newest: dict[Slot, tuple[Rank, Record]] = {}
        self._words: dict[PeerId, dict[Slot, Rank]] = {}

    def count(self, now: float, replica: PeerId, records: tuple[Record, ...]) -> None:
        """Take in what `replica` holds; RemoteError, with nothing changed, if that is forged or was not asked for."""
        word: dict[Slot, Rank] = {}
        good: list[tuple[Slot, Rank, Record]] = []
        for record in records:
            slot = slot_of(record)
            if record.key != self._key or (self._subkeys and slot[1:] not in self._subkeys):
                raise RemoteError("answers with a record that was not asked for", replica)
            if slot in word:
                raise RemoteError("answers with two versions of one entry", replica)
            try:
                check_record(record, self._wall.at(now), self._signer, replica)
            except Expired:
                continue
            word[slot] = rank(record)
            good.append((slot, word[slot], record))
        self._words[replica] = word
        for slot, version, record in good:
            if slot not in self._newest or version > self._newest[slot][0]:
                self._newest[slot] = version, record

    def has_heard(self, replica: PeerId) -> bool:
        """Whether `replica` has said something."""
        return replica in self._words

    def is_whole(self, replica: PeerId) -> bool:
        """Whether `replica` gave the newest version of all that was found, and that is something."""
        word = self._words.get(replica, {})
        return bool(self._newest) and all(word.get(slot) == version for slot, (version, _) in self._newest.items())

    def lacks(self, replica: PeerId) -> tuple[Record, ...]:
        """What was found and `replica`, which answered, does not hold in the newest version."""
        word = self._words.get(replica)
        if word is None:
            return ()
        return tuple(record for slot, (version, record) in self._newest.items() if word.get(slot, ()) < version)

    def has_quorum(self, quorum: int) -> bool:
        """Whether something was found, and for each entry so many replicas gave the newest version."""
        return bool(self._newest) and all(found.replicas >= quorum for found in self.found())

    def found(self) -> tuple[Found, ...]:
        """The newest version of each entry, and how many replicas gave it."""
        return tuple(
            Found(record, sum(word.get(slot) == version for word in self._words.values()))
            for slot, (version, record) in self._newest.items()
        )

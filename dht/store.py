"""The records that this node holds for others, bounded whoever sends what.

What is held:
- One version of an entry (key, author, subkey): the newest (`record.rank`). An older one is refused in words.
- Nothing that has expired. Storing a version again keeps it from being due for republishing, and adds a place.
- At most LIMITS.records, which take at most BYTES_EACH of memory each, with all that leads to them: 32 MiB.

Each entry is on one account: its author's if the author itself stored it with us, else that of the peer who passed it
on, until the author comes. So nobody who passes on thousands of strangers' records has more room than one peer.

Who goes when there is no room:
- Where an author, or an account, has reached its own limit, a record of its own: the farthest from us, of equally far
  ones the one that ends soonest. If that is the new one, it is refused.
- Where a key, or the whole store, is full: a record, chosen in the same way, of the account that has most in it; but
  never in favour of an account that would then have as many. Such a one displaces its own, or is refused.

So an account that keeps to an equal share of a full key or store loses nothing to the others, and one with a single
record never loses it, whatever a flood of new names brings. The price: a key or a store that single records of as many
names have filled takes no new name before some expire. Names cost nothing; that is why a key has three places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.dht.holdings import Entry, Group, Holdings
from shoal.dht.keys import node_id, place
from shoal.dht.record import Slot, slot_of
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.dht import Record

BYTES_EACH = 4096  # of memory: a record of the greatest size, and its share of every table


@dataclass(frozen=True, slots=True)
class Limits:
    """How many records a node holds: at a key's place, a directory of as many peers is plenty to find a run by."""

    records: int = 8192
    per_key: int = 1024
    per_peer: int = 512  # of one author; on one account
    per_author_and_key: int = 16


LIMITS = Limits()


class RecordStore:
    """The records held at the node of `own`; `put` takes only what `check_record` has passed."""

    def __init__(self, own: PeerId, limits: Limits = LIMITS) -> None:
        self._own, self._limits = node_id(own), limits
        self._held = Holdings()
        self._soonest = 0  # nothing that is held expires before

    def __len__(self) -> int:
        return len(self._held.entries)

    def __repr__(self) -> str:
        held = self._held
        return f"RecordStore({len(self)} records, {len(held.keys)} keys, {len(held.authors)} authors)"

    def put(self, now: float, record: Record, copy: int, sender: PeerId) -> str:
        """Hold `record` for the place `copy` of its key: an empty string, or why not."""
        self.expire(now)
        if record.expires <= now:
            return "it has expired"
        held = self._held.entries.get(slot_of(record))
        refusal = self._renew(held, record, sender) if held else self._admit(record, copy, sender)
        if not refusal:
            self._note_place(now, record, copy)
        return refusal

    def find(
        self, now: float, key: Digest, subkeys: Iterable[tuple[PeerId, str]], budget: int
    ) -> tuple[tuple[Record, ...], int]:
        """What is held under `key`, of `subkeys` only unless that is empty, and how much that is.

        Freshest first, by the arrival of the version, but everybody's freshest before anybody's second; as many as
        take at most `budget` bytes in an answer.
        """
        self.expire(now)
        under = self._held.keys.of(key)
        slots: Iterable[Slot] = [(key, *each) for each in dict.fromkeys(subkeys)] or reversed(under)
        found = [under[slot] for slot in slots if slot in under]
        return tuple(_fitting(_in_turns(found), budget)), len(found)

    def due(self, now: float, period: float, most: int) -> list[tuple[Record, int]]:
        """Records, and for which place, that nobody has stored here for `period`; those that wait longest first.

        Whoever asks republishes them: they are due again a period later.
        """
        self.expire(now)
        waiting = [
            (seen, entry, copy)
            for entry in self._held.entries.values()
            for copy, seen in enumerate(entry.seen)
            if seen is not None and seen + period <= now
        ]
        waiting.sort(key=lambda each: each[0])
        for _, entry, copy in waiting[:most]:
            entry.seen[copy] = now
        return [(entry.record, copy) for _, entry, copy in waiting[:most]]

    def expire(self, now: float) -> None:
        """Forget what is over. Looks at all records at most once a second, since records end at whole seconds."""
        if now < self._soonest:
            return
        for entry in [each for each in self._held.entries.values() if each.record.expires <= now]:
            self._held.remove(entry)
        ends = (entry.record.expires for entry in self._held.entries.values())
        self._soonest = min(ends, default=int(now) + 1)

    # -- a record of an entry that is there, and of one that is not ---------------------------------------------

    def _renew(self, held: Entry, record: Record, sender: PeerId) -> str:
        if sender == record.author and len(self._held.accounts.of(sender)) < self._limits.per_peer:
            self._held.charge(held, sender)
        new = Entry(record, held.account)
        if new.rank < held.rank:
            return f"a newer version is held, with sequence {held.record.sequence} until {held.record.expires}"
        if new.rank > held.rank:
            new.seen, new.distance = held.seen, held.distance
            self._held.remove(held)
            self._add(new)
        return ""

    def _admit(self, record: Record, copy: int, sender: PeerId) -> str:
        new = Entry(record, sender)
        new.distance = self._distance(record, copy)
        losers: list[Entry] = []
        for sentence, loser in self._full_rooms(new, losers):
            if loser is new:
                return sentence
            losers.append(loser)
        for loser in losers:
            self._held.remove(loser)
        self._add(new)
        return ""

    def _add(self, entry: Entry) -> None:
        self._held.add(entry)
        self._soonest = min(self._soonest, entry.record.expires)

    def _note_place(self, now: float, record: Record, copy: int) -> None:
        entry = self._held.entries[slot_of(record)]
        entry.seen[copy] = now
        entry.distance = min(entry.distance, self._distance(record, copy))

    def _distance(self, record: Record, copy: int) -> int:
        return int.from_bytes(place(record.key, copy), "big") ^ self._own

    # -- who goes -----------------------------------------------------------------------------------------------

    def _full_rooms(self, new: Entry, losers: list[Entry]) -> Iterator[tuple[str, Entry]]:
        """Each room that has no place for `new`, though `losers` go, and who is to leave it."""
        held, limits, author = self._held, self._limits, new.record.author
        under = held.keys.of(new.record.key)
        here = {slot: entry for slot, entry in held.authors.of(author).items() if slot in under}
        if _full(here, limits.per_author_and_key, losers):
            yield "its author has no more room under this key", _least(new, here)
        if _full(held.authors.of(author), limits.per_peer, losers):
            yield "its author has no more room here", _least(new, held.authors.of(author))
        if _full(held.accounts.of(new.account), limits.per_peer, losers):
            yield "who sent it has no more room here", _least(new, held.accounts.of(new.account))
        if _full(under, limits.per_key, losers):
            yield "the key is full", self._yields(new, under, Counter(each.account for each in under.values()))
        if _full(held.entries, limits.records, losers):
            yield "the store is full", self._yields_anywhere(new)

    def _yields(self, new: Entry, room: Group, shares: Counter[PeerId]) -> Entry:
        """Who leaves a full key."""
        largest, most = max(shares.items(), key=lambda share: share[1])
        account = largest if most > shares[new.account] + 1 else new.account
        return _least(new if account == new.account else None, {s: e for s, e in room.items() if e.account == account})

    def _yields_anywhere(self, new: Entry) -> Entry:
        """Who leaves a full store."""
        accounts = self._held.accounts
        own, largest = accounts.of(new.account), accounts.of(accounts.largest())
        return _least(None, largest) if len(largest) > len(own) + 1 else _least(new, own)


def _full(room: Group, most: int, losers: list[Entry]) -> bool:
    return len(room) - sum(slot_of(each.record) in room for each in losers) >= most


def _least(new: Entry | None, group: Group) -> Entry:
    """Of the entries and the new one the one that is worth least; of equals, the new one."""
    return min([*([new] if new else []), *group.values()], key=lambda entry: entry.worth)


def _in_turns(entries: list[Entry]) -> list[Entry]:
    """In the same order, but each author's second after everybody's first, and so on."""
    turns: Counter[PeerId] = Counter()
    numbered = []
    for entry in entries:
        numbered.append((turns[entry.record.author], entry))
        turns[entry.record.author] += 1
    return [entry for _, entry in sorted(numbered, key=lambda each: each[0])]


def _fitting(entries: list[Entry], budget: int) -> Iterator[Record]:
    for entry in entries:
        budget -= entry.size
        if budget < 0:
            return
        yield entry.record

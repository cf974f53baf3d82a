"""The records that this node holds for others, within bounds, whatever peers send.

`Holdings` finds entries by key, by author and by account, and decides nothing; `RecordStore` decides what is held.

What is held:
- The newest version (`record.rank`) of each entry (key, author, subkey). An older one is refused.
- No expired records. Storing a version again resets the time until it is due for republishing, and may add a place.
- At most LIMITS.records, of at most BYTES_EACH of memory each, indexes included: 32 MiB.

Each entry is charged to one account: its author's if the author itself stored it with us, else that of the peer that
passed it on, until the author stores it. So a peer that passes on thousands of strangers' records has no more room than
another.

What is evicted when there is no room:
- If an author, or an account, has reached its own limit, one of its own records: the farthest from us, of equally far
  ones the one that expires first. If that is the new one, it is refused.
- If a key, or the whole store, is full: a record, chosen in the same way, of the account that has most in it; but never
  so that this account is left with fewer than the new record's, which then displaces one of its own, or is refused.

So an account that keeps to an equal share of a full key or store loses nothing to others, and one with a single record
never loses it, however many new names an attacker uses. The price: a key or a store that is full of single records of
different names takes no new name before some expire. Names cost nothing; that is why a key has three places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from shoal.dht.clock import WallClock
from shoal.dht.keys import COPIES, node_id, place
from shoal.dht.record import Slot, rank, slot_of
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import encode
from shoal.protocol.messages.dht import Record, StoreResult

G = TypeVar("G", bound=Hashable)
T = TypeVar("T")

BYTES_EACH = 4096  # of memory: a record of the greatest size, and its share of every index


class Entry:
    """One entry: the newest version that we were sent, and the account that it is charged to."""

    __slots__ = ("account", "distance", "rank", "record", "seen", "size", "targets")

    def __init__(self, record: Record, account: PeerId) -> None:
        self.record, self.account = record, account
        self.rank = rank(record)
        self.size = len(encode(record))
        self.seen: list[float | None] = [None] * COPIES  # when it was last stored, by number of the place
        self.targets: dict[int, int] = {}  # the ids of these places, by number
        self.distance = 0  # from us to the nearest of these places

    @property
    def worth(self) -> tuple[int, int]:
        """A sort key: the farthest from us is worth least, and among those the one that expires first."""
        return -self.distance, self.record.expires


Group = dict[Slot, Entry]


class Groups(Generic[G]):
    """Entries grouped by a property, such as their author; knows which group is largest."""

    def __init__(self) -> None:
        self._groups: dict[G, Group] = {}
        self._of_size: dict[int, dict[G, None]] = {}  # groups by their number of entries
        self._largest = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups)

    def of(self, name: G) -> Group:
        """The entries of a group, oldest first; must not be changed."""
        return self._groups.get(name, {})

    def largest(self) -> G:
        """The group with most entries; of several, the one that reached that number first."""
        return next(iter(self._of_size[self._largest]))

    def add(self, name: G, slot: Slot, entry: Entry) -> None:
        group = self._groups.setdefault(name, {})
        group[slot] = entry
        self._move(name, len(group) - 1, len(group))

    def remove(self, name: G, slot: Slot) -> None:
        group = self._groups[name]
        del group[slot]
        self._move(name, len(group) + 1, len(group))
        if not group:
            del self._groups[name]

    def _move(self, name: G, before: int, after: int) -> None:
        """Note that a group has one entry more or less; the largest size changes by one at most."""
        if before:
            del self._of_size[before][name]
        if after:
            self._of_size.setdefault(after, {})[name] = None
        self._largest = max(self._largest, after)
        if before and not self._of_size[before]:
            del self._of_size[before]
            if self._largest == before:
                self._largest = after


class Holdings:
    """All entries, with indexes by key, author and account."""

    def __init__(self) -> None:
        self.entries: Group = {}
        self.keys: Groups[Digest] = Groups()
        self.authors: Groups[PeerId] = Groups()
        self.accounts: Groups[PeerId] = Groups()

    def add(self, entry: Entry) -> None:
        """Add a new entry."""
        slot = slot_of(entry.record)
        self.entries[slot] = entry
        self.keys.add(entry.record.key, slot, entry)
        self.authors.add(entry.record.author, slot, entry)
        self.accounts.add(entry.account, slot, entry)

    def remove(self, entry: Entry) -> None:
        """Remove a held entry."""
        slot = slot_of(entry.record)
        del self.entries[slot]
        self.keys.remove(entry.record.key, slot)
        self.authors.remove(entry.record.author, slot)
        self.accounts.remove(entry.account, slot)

    def charge(self, entry: Entry, account: PeerId) -> None:
        """Charge a held entry to another account."""
        slot = slot_of(entry.record)
        self.accounts.remove(entry.account, slot)
        entry.account = account
        self.accounts.add(account, slot, entry)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many records a node holds. `per_key` is plenty: nobody needs more of its members to find a run."""

    records: int = 8192
    per_key: int = 1024
    per_peer: int = 512  # of one author, and on one account
    per_author_and_key: int = 16


LIMITS = Limits()


class RecordStore:
    """The records held by the node `own`; callers of `put` have checked the record with `check_record`."""

    def __init__(self, own: PeerId, limits: Limits = LIMITS, wall: WallClock | None = None) -> None:
        self._own, self._limits, self._wall = node_id(own), limits, wall or WallClock()
        self._held = Holdings()
        self._soonest = 0  # no held record expires before

    def __len__(self) -> int:
        return len(self._held.entries)

    def __repr__(self) -> str:
        held = self._held
        return f"RecordStore({len(self)} records, {len(held.keys)} keys, {len(held.authors)} authors)"

    def put(self, now: float, record: Record, copy: int, sender: PeerId) -> StoreResult:
        """Hold `record` for the place `copy` of its key, or return why not."""
        self.expire(now)
        if record.expires <= self._wall.at(now):
            return StoreResult.EXPIRED
        held = self._held.entries.get(slot_of(record))
        result = self._renew(held, record, sender) if held else self._admit(record, copy, sender)
        if result is StoreResult.HELD:
            self._note_place(now, record, copy)
        return result

    def find(
        self, now: float, key: Digest, subkeys: Iterable[tuple[PeerId, str]], budget: int
    ) -> tuple[tuple[Record, ...], int]:
        """The records held under `key` that fit into `budget` bytes, and how many are held; `subkeys` limits both.

        Freshest first, by the arrival of the version, but the first of each author before the second of any. Empty
        `subkeys` mean all.
        """
        self.expire(now)
        under = self._held.keys.of(key)
        named = [(key, *each) for each in dict.fromkeys(subkeys)]
        found = [under[slot] for slot in named if slot in under] if named else list(reversed(under.values()))
        return tuple(_fitting(_in_turns(found, lambda entry: entry.record.author), budget)), len(found)

    def places(self, now: float) -> list[tuple[Digest, int, int]]:
        """(key, copy, id) of each place for which records are held."""
        self.expire(now)
        found = []
        for key in self._held.keys:
            targets: dict[int, int] = {}
            for entry in self._held.keys.of(key).values():
                targets |= entry.targets
                if len(targets) == COPIES:
                    break
            found += [(key, copy, target) for copy, target in targets.items()]
        return found

    def due(self, now: float, period: float, most: int) -> list[tuple[Record, int]]:
        """Records, with their place, that nobody has stored here for `period` seconds; those that wait longest first.

        But the first of each account comes before the second of any, so that a flood holds up nobody's records. The
        caller republishes them: they are due again a period later.
        """
        self.expire(now)
        waiting = [
            (seen, entry, copy)
            for entry in self._held.entries.values()
            for copy, seen in enumerate(entry.seen)
            if seen is not None and seen + period <= now
        ]
        waiting.sort(key=lambda each: each[0])
        chosen = list(islice(_in_turns(waiting, lambda each: each[1].account), most))
        for _, entry, copy in chosen:
            entry.seen[copy] = now
        return [(entry.record, copy) for _, entry, copy in chosen]

    def expire(self, now: float) -> None:
        """Remove expired records. Scans all records at most once a second, since they expire at whole seconds."""
        clock = self._wall.at(now)
        if clock < self._soonest:
            return
        for entry in [each for each in self._held.entries.values() if each.record.expires <= clock]:
            self._held.remove(entry)
        ends = (entry.record.expires for entry in self._held.entries.values())
        self._soonest = min(ends, default=int(clock) + 1)

    # -- a version of a held entry, and a new entry -------------------------------------------------------------

    def _renew(self, held: Entry, record: Record, sender: PeerId) -> StoreResult:
        new = Entry(record, held.account)
        if new.rank < held.rank:
            return StoreResult.OUTDATED
        if new.rank > held.rank:
            new.seen, new.targets, new.distance = held.seen, held.targets, held.distance
            self._held.remove(held)
            self._add(new)
        self._charge_author(record, sender)
        return StoreResult.HELD

    def _charge_author(self, record: Record, sender: PeerId) -> None:
        if sender == record.author and len(self._held.accounts.of(sender)) < self._limits.per_peer:
            self._held.charge(self._held.entries[slot_of(record)], sender)

    def _admit(self, record: Record, copy: int, sender: PeerId) -> StoreResult:
        new = Entry(record, sender)
        new.targets[copy] = _target(record, copy)
        new.distance = new.targets[copy] ^ self._own
        evicted: list[Entry] = []
        for refusal, victim in self._full_limits(new, evicted):
            if victim is new:
                return refusal
            evicted.append(victim)
        for victim in evicted:
            self._held.remove(victim)
        self._add(new)
        return StoreResult.HELD

    def _add(self, entry: Entry) -> None:
        self._held.add(entry)
        self._soonest = min(self._soonest, entry.record.expires)

    def _note_place(self, now: float, record: Record, copy: int) -> None:
        entry = self._held.entries[slot_of(record)]
        entry.seen[copy] = now
        if copy not in entry.targets:
            entry.targets[copy] = _target(record, copy)
            entry.distance = min(entry.distance, entry.targets[copy] ^ self._own)

    # -- eviction -----------------------------------------------------------------------------------------------

    def _full_limits(self, new: Entry, evicted: list[Entry]) -> Iterator[tuple[StoreResult, Entry]]:
        """Each limit that `new` would exceed, even without the `evicted`, and the entry to evict for it."""
        held, limits, author = self._held, self._limits, new.record.author
        under = held.keys.of(new.record.key)
        here = {slot: entry for slot, entry in held.authors.of(author).items() if slot in under}
        if _full(here, limits.per_author_and_key, evicted):
            yield StoreResult.NO_ROOM_FOR_AUTHOR_UNDER_KEY, _least_worth([new, *here.values()])
        if _full(held.authors.of(author), limits.per_peer, evicted):
            yield StoreResult.NO_ROOM_FOR_AUTHOR, _least_worth([new, *held.authors.of(author).values()])
        if _full(held.accounts.of(new.account), limits.per_peer, evicted):
            yield StoreResult.NO_ROOM_FOR_SENDER, _least_worth([new, *held.accounts.of(new.account).values()])
        if _full(under, limits.per_key, evicted):
            yield StoreResult.KEY_IS_FULL, self._evict_from_key(new, under)
        if _full(held.entries, limits.records, evicted):
            yield StoreResult.STORE_IS_FULL, self._evict_from_store(new)

    def _evict_from_key(self, new: Entry, under: Group) -> Entry:
        shares = Counter(entry.account for entry in under.values())
        [(largest, most)] = shares.most_common(1)
        if most > shares[new.account] + 1:
            return _least_worth(entry for entry in under.values() if entry.account == largest)
        return _least_worth([new, *(entry for entry in under.values() if entry.account == new.account)])

    def _evict_from_store(self, new: Entry) -> Entry:
        accounts = self._held.accounts
        own, largest = accounts.of(new.account), accounts.of(accounts.largest())
        return _least_worth(largest.values() if len(largest) > len(own) + 1 else [new, *own.values()])


def _target(record: Record, copy: int) -> int:
    return int.from_bytes(place(record.key, copy), "big")


def _full(group: Group, most: int, evicted: list[Entry]) -> bool:
    return len(group) - sum(slot_of(each.record) in group for each in evicted) >= most


def _least_worth(entries: Iterable[Entry]) -> Entry:
    """The entry that is worth least; of equals, the first."""
    return min(entries, key=lambda entry: entry.worth)


def _in_turns(items: list[T], whose: Callable[[T], PeerId]) -> Iterator[T]:
    """The items in the same order, but the second of each owner after the first of all, and so on."""
    while items:
        served: set[PeerId] = set()
        later = []
        for item in items:
            if whose(item) in served:
                later.append(item)
            else:
                served.add(whose(item))
                yield item
        items = later


def _fitting(entries: Iterable[Entry], budget: int) -> Iterator[Record]:
    for entry in entries:
        budget -= entry.size
        if budget < 0:
            return
        yield entry.record

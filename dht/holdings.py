"""What a store holds, found by entry, by key, by author, and by the account that it is on. No policy lives here.

Rules:
- All four views always agree; a group without entries does not exist.
- The entries of a group are in the order of their arrival, a new version being a new arrival.
- The account with most entries is found at once, however many there are: a flood asks for it with every record.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from shoal.dht.keys import COPIES
from shoal.dht.record import Slot, rank, slot_of
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.dht import Record
from shoal.protocol.wire import encode

G = TypeVar("G", bound=Hashable)


class Entry:
    """One entry, the newest version of it that has come, and on whose account it is."""

    __slots__ = ("account", "distance", "rank", "record", "seen", "size", "targets")

    def __init__(self, record: Record, account: PeerId) -> None:
        self.record, self.account = record, account
        self.rank = rank(record)
        self.size = len(encode(record))
        self.seen: list[float | None] = [None] * COPIES  # for each of the places it was stored for: when last
        self.targets: dict[int, int] = {}  # where each of them lies
        self.distance = 0  # from us to the nearest of these places

    @property
    def worth(self) -> tuple[int, int]:
        """What is farthest from us is worth least, and of that what ends soonest."""
        return -self.distance, self.record.expires


Group = dict[Slot, Entry]


class Groups(Generic[G]):
    """Entries by a property of theirs, and which group is largest."""

    def __init__(self) -> None:
        self._groups: dict[G, Group] = {}
        self._of_size: dict[int, dict[G, None]] = {}  # the groups with so many entries
        self._largest = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups)

    def of(self, name: G) -> Group:
        """The entries of a group, oldest first; not to be changed."""
        return self._groups.get(name, {})

    def largest(self) -> G:
        """The group with most entries; of several, the one that has had as many for longest."""
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
        """One more or one less: so the largest size changes by one at most."""
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
    """Entries in all their views."""

    def __init__(self) -> None:
        self.entries: Group = {}
        self.keys: Groups[Digest] = Groups()
        self.authors: Groups[PeerId] = Groups()
        self.accounts: Groups[PeerId] = Groups()

    def add(self, entry: Entry) -> None:
        """Take in an entry that is not there."""
        slot = slot_of(entry.record)
        self.entries[slot] = entry
        self.keys.add(entry.record.key, slot, entry)
        self.authors.add(entry.record.author, slot, entry)
        self.accounts.add(entry.account, slot, entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry that is there."""
        slot = slot_of(entry.record)
        del self.entries[slot]
        self.keys.remove(entry.record.key, slot)
        self.authors.remove(entry.record.author, slot)
        self.accounts.remove(entry.account, slot)

    def charge(self, entry: Entry, account: PeerId) -> None:
        """Put an entry that is there on another account."""
        slot = slot_of(entry.record)
        self.accounts.remove(entry.account, slot)
        entry.account = account
        self.accounts.add(account, slot, entry)

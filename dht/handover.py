"""Keeps records at the servers nearest to their places: hands them to nearer servers that appear, and stores them again
with all of the nearest from time to time.

Rules:
- If a server new in the table is among the REPLICAS nearest to a record's place, the GIVERS nearest of the others give
  it the records there: one alone may be gone or lying.
- A record that nobody has stored with us for a period is stored again with all of the nearest, if we are among them.
  Periods have jitter, and a server with which it is stored waits for another period itself, so mostly one server of
  the nearest does it.
- Records for one server travel in few calls, of at most BATCH records.
- A node that leaves hands over MAX_ON_LEAVE records at most, as the shell waits only for a moment.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from shoal.dht.calls import IGNORE_ANSWER, Calls
from shoal.dht.keys import REPLICAS, node_id, place
from shoal.dht.store import RecordStore
from shoal.dht.table import Table
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact, Record, Store

GIVERS = 2  # servers that give a newcomer the records of a place
BATCH = 16
CHECK_EVERY = 100.0  # seconds between checks for due records
REPUBLISH_AFTER = 900.0  # seconds after which a record is due
MAX_DUE = 64  # records stored again after one check
MAX_ON_LEAVE = 192  # records: as many of one place fit into the calls that may be under way at once
MAX_KEY_BYTES = 1 << 20  # bytes of one key's records that are handed over

Load = dict[tuple[PeerId, int], list[Record]]
"""Records to store, by the server and the number of the place."""


class Handover:
    """Moves the records that we hold to where they belong."""

    def __init__(self, me: PeerId, rng: random.Random, table: Table, calls: Calls, store: RecordStore) -> None:
        self._me, self._rng, self._table, self._calls, self._store = me, rng, table, calls, store

    def start(self, now: float) -> None:
        """Begin to check for due records."""
        self._calls.wake(now, self._rng.uniform(0.0, CHECK_EVERY), "republish")

    # -- a newcomer ---------------------------------------------------------------------------------------

    def welcome(self, now: float, newcomer: Contact) -> None:
        """Give a server that is new in the table the records that belong to it now."""
        theirs, ours = node_id(newcomer.peer), node_id(self._me)
        load: Load = {}
        for key, copy, target in self._store.places(now):
            if self._must_give(target, ours, theirs):
                records, _ = self._store.find(now, key, (), MAX_KEY_BYTES)
                load.setdefault((newcomer.peer, copy), []).extend(records)
        self._send(now, load, {newcomer.peer: newcomer})

    def _must_give(self, target: int, ours: int, theirs: int) -> bool:
        """Whether we are one of those that give a newcomer the records at `target`."""
        if self._table.nearer_at_least(target) > GIVERS:  # cheap, and enough for most records of a flooded store
            return False
        near = [node_id(contact.peer) ^ target for contact in self._table.closest(target, REPLICAS + 1)]
        nearer_than_we = sum(distance < ours ^ target for distance in near if distance != theirs ^ target)
        nearer_than_it = sum(distance < theirs ^ target for distance in near) + (ours ^ target < theirs ^ target)
        return nearer_than_it < REPLICAS and nearer_than_we < GIVERS

    # -- from time to time --------------------------------------------------------------------------------

    def republish(self, now: float) -> None:
        """Store due records with the servers nearest to their places."""
        self._calls.wake(now, self._rng.uniform(0.5, 1.5) * CHECK_EVERY, "republish")
        period = REPUBLISH_AFTER * self._rng.uniform(0.75, 1.25)
        self._spread(now, self._store.due(now, period, MAX_DUE))

    def leave(self, now: float) -> None:
        """Store the records that we hold with the servers that are nearest without us."""
        pairs: list[tuple[Record, int]] = []
        for key, copy, target in self._store.places(now):
            if self._is_ours(target):
                records, _ = self._store.find(now, key, (), MAX_KEY_BYTES)
                pairs += [(record, copy) for record in records]
            if len(pairs) >= MAX_ON_LEAVE:
                break
        self._spread(now, pairs[:MAX_ON_LEAVE])

    def _is_ours(self, target: int) -> bool:
        """Whether we are among the nearest; cheap for most targets of which we are not."""
        return self._table.nearer_at_least(target) < REPLICAS and self._table.rank(target, REPLICAS) < REPLICAS

    def _spread(self, now: float, pairs: Iterable[tuple[Record, int]]) -> None:
        load: Load = {}
        contacts: dict[PeerId, Contact] = {}
        for record, copy in pairs:
            target = int.from_bytes(place(record.key, copy), "big")
            if not self._is_ours(target):
                continue
            for contact in self._table.closest(target, REPLICAS):
                contacts[contact.peer] = contact
                load.setdefault((contact.peer, copy), []).append(record)
        self._send(now, load, contacts)

    def _send(self, now: float, load: Load, contacts: dict[PeerId, Contact]) -> None:
        for (peer, copy), records in load.items():
            for start in range(0, len(records), BATCH):
                batch = tuple(records[start : start + BATCH])
                self._calls.ask(now, contacts[peer], Store(batch, copy), IGNORE_ANSWER)

"""Records stay with the servers nearest to their places: they are handed to servers that come nearer, and stored again
with all the nearest from time to time.

Rules:
- A server that is new in the table, and among the REPLICAS nearest of a record's place, is given what lies there by the
  HEIRS nearest of the others; a single one may be gone or lying.
- What nobody has stored with us for a period is stored again with all of the nearest, if we are among them. Periods
  have jitter, and a server that is stored with waits for another period itself, so mostly one of the nearest does it.
- What goes to one server goes in few calls, of at most BATCH records.
- A node that leaves hands over LAST records at most, as the shell waits for a moment only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from shoal.dht.calls import UNHEARD, Calls
from shoal.dht.keys import REPLICAS, node_id, place
from shoal.dht.store import RecordStore
from shoal.dht.table import Table
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact, Record, Store

HEIRS = 2
BATCH = 16
CHECK = 100.0  # seconds between looks at what is due
PERIOD = 900.0  # seconds after which a record is due
MOST = 64  # records at one look
LAST = 192  # records of who leaves: so many of one place fit into the calls that may be on their way at a time
FITTING = 1 << 20  # bytes of one key's records that are handed over

Load = dict[tuple[PeerId, int], list[Record]]
"""What to store with whom, for which copy."""


class Handover:
    """Watches over the records that we hold, and where they belong."""

    def __init__(self, me: PeerId, rng: random.Random, table: Table, calls: Calls, store: RecordStore) -> None:
        self._me, self._rng, self._table, self._calls, self._store = me, rng, table, calls, store

    def start(self, now: float) -> None:
        """Begin to look what is due."""
        self._calls.wake(now, self._rng.uniform(0.0, CHECK), "republish")

    # -- a newcomer ---------------------------------------------------------------------------------------

    def welcome(self, now: float, newcomer: Contact) -> None:
        """Give a server that we did not know what belongs to it now."""
        theirs, ours = node_id(newcomer.peer), node_id(self._me)
        load: Load = {}
        for key, copy, target in self._store.places(now):
            if self._is_heir(target, ours, theirs):
                records, _ = self._store.find(now, key, (), FITTING)
                load.setdefault((newcomer.peer, copy), []).extend(records)
        self._send(now, load, {newcomer.peer: newcomer})

    def _is_heir(self, target: int, ours: int, theirs: int) -> bool:
        """Whether it is for us to give a newcomer what lies at `target`."""
        if self._table.crowd(target) > HEIRS:  # cheap, and so for nearly all in a store that somebody has filled
            return False
        near = [node_id(contact.peer) ^ target for contact in self._table.closest(target, REPLICAS + 1)]
        nearer_than_we = sum(distance < ours ^ target for distance in near if distance != theirs ^ target)
        nearer_than_it = sum(distance < theirs ^ target for distance in near) + (ours ^ target < theirs ^ target)
        return nearer_than_it < REPLICAS and nearer_than_we < HEIRS

    # -- from time to time --------------------------------------------------------------------------------

    def republish(self, now: float) -> None:
        """Store what is due with the nearest."""
        self._calls.wake(now, self._rng.uniform(0.5, 1.5) * CHECK, "republish")
        period = PERIOD * self._rng.uniform(0.75, 1.25)
        self._spread(now, self._store.due(now, period, MOST))

    def leave(self, now: float) -> None:
        """Store what we hold with those that are nearest without us."""
        pairs: list[tuple[Record, int]] = []
        for key, copy, target in self._store.places(now):
            if self._is_ours(target):
                records, _ = self._store.find(now, key, (), FITTING)
                pairs += [(record, copy) for record in records]
            if len(pairs) >= LAST:
                break
        self._spread(now, pairs[:LAST])

    def _is_ours(self, target: int) -> bool:
        """Whether we are among the nearest; cheap for nearly all of what is not."""
        return self._table.crowd(target) < REPLICAS and self._table.rank(target, REPLICAS) < REPLICAS

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
                self._calls.ask(now, contacts[peer], Store(batch, copy), UNHEARD)

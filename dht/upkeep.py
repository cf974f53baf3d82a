"""Keeps the routing table up to date: joins, checks silent contacts, fills buckets, looks up our neighbourhood.

Rules:
- A join is a lookup of our own id, and then a refresh of every bucket. It begins with the first server that we get to
  know, and again if we lose them all.
- At every tick the contact heard least recently is greeted, if that was long ago. In a quiet network that is one short
  call; a busy one needs none.
- A bucket is refreshed by asking a member for the servers near a random point in it, until no answer names a server
  that the bucket has room for. A few contacts of each answer are greeted, so that a bucket's members are spread out.
- Buckets near us are seldom full, so neighbours get to know each other: they hold the same records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from shoal.dht.calls import Calls
from shoal.dht.greeting import Greeter
from shoal.dht.keys import K, node_id
from shoal.dht.lookup import Lookup
from shoal.dht.table import Bucket, Table
from shoal.dht.vetting import vetted_contacts
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, FindNode, Nodes

GREETED_PER_ANSWER = 5  # contacts of one answer that are greeted to fill a bucket


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a node maintains its table, in seconds."""

    tick: float  # between two ticks; each checks one contact at most
    stale: float  # without an answer, after which a contact is checked


SERVER = Pace(tick=15.0, stale=1800.0)
CLIENT = Pace(tick=60.0, stale=1800.0)
REFRESH, REFRESH_FULL = 1200.0, 3600.0  # seconds between refreshes of a settled bucket, and of a full one
FILL_EVERY = 2.0  # seconds between ticks while buckets have not settled
RECHECK_AFTER = 20.0  # seconds after which a contact that did not answer is greeted again


class Upkeep:
    """Joins the network, and maintains the routing table."""

    def __init__(self, me: PeerId, rng: random.Random, table: Table, calls: Calls, greeter: Greeter) -> None:
        self._me, self._rng, self._table, self._calls, self._greeter = me, rng, table, calls, greeter
        self._join_lookup: Lookup | None = None
        self.has_joined = False

    @property
    def _pace(self) -> Pace:
        return SERVER if self._greeter.serves else CLIENT

    def start(self, now: float) -> None:
        """Begin to tick."""
        self._calls.wake(now, self._rng.uniform(0.0, self._pace.tick), "tick")

    def met(self, now: float, contact: Contact, serves: bool) -> None:
        """A server has entered the table, or a client has answered, which may know servers."""
        if not serves:
            if not len(self._table):
                self._calls.ask(now, contact, FindNode(_digest(node_id(self._me))), self)
        elif not self.has_joined and self._join_lookup is None:
            self._join(now)

    def tick(self, now: float) -> None:
        """Check the stalest contact; refresh one bucket."""
        pace = self._pace
        self._check_stalest(now, pace.stale)
        due = [each for each in self._table.buckets() if self._is_due(now, each[1])]
        if due and self.has_joined:
            self._refresh(now, *min(due, key=lambda each: each[1].refreshed))
        self.has_joined = self.has_joined and len(self._table) > 0
        pause = FILL_EVERY if self.has_joined and len(due) > 1 else pace.tick
        self._calls.wake(now, self._rng.uniform(0.8, 1.2) * pause, "tick")

    def _check_stalest(self, now: float, stale: float) -> None:
        known = self._table.stalest()
        if known is None:
            return
        quiet = now - (known.silent_since if known.silences else known.seen)
        if quiet > (RECHECK_AFTER if known.silences else stale):
            self._greeter.greet(now, known.contact, anew=True)

    def _is_due(self, now: float, bucket: Bucket) -> bool:
        if bucket.is_full:
            return now - bucket.refreshed > REFRESH_FULL
        return not bucket.is_settled or now - bucket.refreshed > self._table.refresh_pause(REFRESH)

    def _join(self, now: float) -> None:
        target = _digest(node_id(self._me))
        self._join_lookup = Lookup(self._me, self._table, self._calls, target, K // 2, self._looked)
        self._join_lookup.begin(now)

    def _looked(self, now: float) -> None:
        lookup = self._join_lookup
        if lookup is None or not lookup.is_over:
            return
        self._join_lookup = None
        for candidate in lookup.nearest(K):
            if self._table.wants(now, candidate.contact):
                self._greeter.greet(now, candidate.contact)
        if not self.has_joined and len(self._table):
            self.has_joined = True
            for bits, bucket in self._table.buckets():
                self._refresh(now, bits, bucket)
            self._calls.wake(now, FILL_EVERY, "tick")

    # -- buckets ------------------------------------------------------------------------------------------

    def _refresh(self, now: float, bits: int, bucket: Bucket) -> None:
        bucket.refreshed, bucket.is_settled = now, True
        helpful = [known for known in bucket.members or self._table.known() if not known.silences]
        if helpful:
            known = self._rng.choice(helpful)
            offset = self._rng.getrandbits(bits - 1) | 1 << (bits - 1)
            self._calls.ask(now, known.contact, FindNode(_digest(node_id(self._me) ^ offset)), self)

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Greet some of the contacts in an answer, which may belong to the bucket."""
        if not isinstance(answer, Nodes):
            raise RemoteError(f"answers FindNode with {type(answer).__name__}", contact.peer)
        named = self._table.note_missing(now, vetted_contacts(self._me, contact.peer, answer.closer))
        for each in self._rng.sample(named, min(GREETED_PER_ANSWER, len(named))):
            self._greeter.greet(now, each)

    def failed(self, now: float, contact: Contact) -> None:
        """Nothing follows: the next tick asks another."""


def _digest(number: int) -> Digest:
    return Digest(number.to_bytes(DIGEST_SIZE, "big"))

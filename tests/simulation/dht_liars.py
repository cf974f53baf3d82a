"""Servers that lie: they join, greet and store like honest ones, and answer lookups with what harms most.

All of them are in one ring and know each other. Each has a way of lying:

    crowd   denies all records, and names other liars as the nearest
    ghost   denies all records, and names nodes that do not exist
    mirror  denies all records, and names itself
    deny    denies all records, and is honest about the nearest
    stale   gives the first version that anyone in the ring was ever given, and names other liars
    forge   gives a record of a higher sequence that nobody signed, and names other liars
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Sequence
from itertools import cycle

from shoal.dht.effects import Effect
from shoal.dht.kademlia import Kademlia
from shoal.dht.keys import BITS, COPIES, K, node_id, place
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import (
    Contact,
    FindNode,
    FindRecords,
    Nodes,
    Record,
    Records,
    Store,
    Stored,
    StoreResult,
)
from tests.simulation.dht_world import make_address, make_peer
from tests.simulation.signing import FakeSigner

WAYS = ("crowd", "ghost", "mirror", "deny", "stale", "forge")
GHOSTS = 1000


class Ring:
    """All liars of one network, and what they share."""

    def __init__(self, rng: random.Random, ways: Sequence[str] = WAYS) -> None:
        self._ways = cycle(ways)
        self.members: list[Contact] = []
        self.ghosts = [Contact(make_peer(rng), (make_address(rng),)) for _ in range(GHOSTS)]
        self.first: dict[Digest, Record] = {}

    def make(self, peer: PeerId, signer: FakeSigner, rng: random.Random) -> Liar:
        """One more liar; liars get the ways of lying in turn."""
        return Liar(peer, signer, rng, self, next(self._ways))


class Liar(Kademlia):
    """A server that lies in one of the ways above."""

    def __init__(self, peer: PeerId, signer: FakeSigner, rng: random.Random, ring: Ring, way: str) -> None:
        super().__init__(peer, signer, rng)
        self._ring, self._way = ring, way
        self._contact = Contact(peer, ())

    def set_contact(self, now: float, addresses: tuple[str, ...], serves: bool) -> list[Effect]:
        """A liar is in the ring as soon as it has an address."""
        self._contact = Contact(self.me, addresses)
        self._ring.members.append(self._contact)
        return super().set_contact(now, addresses, serves)

    def serve(self, now: float, sender: PeerId, message: Message) -> tuple[Message, list[Effect]]:
        """Answer a call with a lie."""
        match message:
            case FindNode():
                return Nodes(self._closer(int.from_bytes(message.target, "big"))), []
            case FindRecords():
                records = self._records(message)
                target = int.from_bytes(place(message.key, message.copy), "big")
                return Records(records, len(records), self._closer(target)), []
            case Store():
                for record in message.records:
                    self._ring.first.setdefault(record.key, record)
                return Stored((StoreResult.HELD,) * len(message.records)), []
        return super().serve(now, sender, message)

    def _closer(self, target: int) -> tuple[Contact, ...]:
        if self._way == "mirror":
            return (self._contact,)
        if self._way == "deny":
            return tuple(self._table.closest(target, K))
        pool = self._ring.ghosts if self._way == "ghost" else self._ring.members
        nearest = heapq.nsmallest(K + 1, pool, key=lambda contact: node_id(contact.peer) ^ target)
        return tuple(contact for contact in nearest if contact.peer != self.me)[:K]

    def _records(self, question: FindRecords) -> tuple[Record, ...]:
        first = self._ring.first.get(question.key)
        if first is None or self._way not in ("stale", "forge"):
            return ()
        return (first if self._way == "stale" else dataclasses.replace(first, sequence=first.sequence + 9),)


def grind(key: Digest, copy: int, count: int, servers: int, rng: random.Random) -> list[PeerId]:
    """Names nearer to a place of `key` than any of so many honest servers is likely to be."""
    target = int.from_bytes(place(key, copy), "big")
    near = (1 << BITS) // (3 * servers)
    found: list[PeerId] = []
    while len(found) < count:
        peer = make_peer(rng)
        if node_id.__wrapped__(peer) ^ target < near:
            found.append(peer)
    return found


def ring_around(
    key: Digest, copies: Sequence[int], servers: int, share: float, ground: int, rng: random.Random
) -> list[PeerId]:
    """Names of liars, `share` of all servers; `ground` of them nearest to places of `key`."""
    names = [
        name
        for number, copy in enumerate(copies)
        for name in grind(key, copy % COPIES, ground // len(copies) + (number < ground % len(copies)), servers, rng)
    ]
    return names + [make_peer(rng) for _ in range(round(servers * share) - len(names))]

"""The serving side of the DHT: answers FindNode, FindRecords and Store from any peer.

Rules:
- A request is answered, is refused, or raises a RemoteError before anything has changed.
- The work that one peer may cause is bounded, in a burst and over time: questions, where a long answer counts as
  several, and records to store, each of which may cost a signature check. The last MOST_PEERS peers are remembered.
  These tables, with the signatures that a CachingSigner remembers, take less than 4 MiB beside the store.
- A record is refused if we know K servers that are nearer to its place: readers ask those. So only an attacker who
  generates keys near to us can fill our store, and no record lies where nobody finds it. The bound is K and not
  REPLICAS because other nodes know other servers than we do, and because records are also kept on the way to their
  place. It does not hold where we are so near that fewer than K servers are expected: at crowded places farther
  servers hold records, too.
- An answer that has the wanted records names only the REPLICAS nearest servers instead of the K nearest.
- A node that does not serve stores nothing, as nobody would ask it; it answers questions all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.dht.clock import WallClock
from shoal.dht.keys import COPIES, REPLICAS, K, node_id, place
from shoal.dht.record import Expired, check_record
from shoal.dht.store import RecordStore
from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
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
from shoal.protocol.messages.node import Refused


class Neighbourhood(Protocol):
    """The other servers, as the routing table knows them."""

    def closest(self, target: int, count: int) -> Sequence[Contact]:
        """The known servers nearest to `target`, nearest first, without ourselves."""

    def expected(self, distance: int) -> float:
        """How many servers are expected within `distance` of a place."""


MAX_STORE = 32  # records in one call
MAX_WANTED = 64  # subkeys in one call
ANSWER = 32 << 10  # bytes of records in one answer: eighty directory entries
RECORDS_A_QUESTION = 8  # records of an answer that count as one more question
QUESTIONS, QUESTIONS_A_SECOND = 1024, 32
STORES, STORES_A_SECOND = 512, 16
MOST_PEERS = 1024


class Server:
    """Answers from `store` and from the known `others`; `signer` checks records and is best a CachingSigner."""

    def __init__(
        self, signer: Signer, store: RecordStore, others: Neighbourhood, serving: bool, wall: WallClock | None = None
    ) -> None:
        self.serving = serving  # whether others may store here; changes as we learn whether they reach us
        self._signer, self._store, self._others = signer, store, others
        self._own, self._wall = node_id(signer.peer), wall or WallClock()
        self._questions: Allowances[PeerId] = Allowances(QUESTIONS, QUESTIONS_A_SECOND, MOST_PEERS)
        self._stores: Allowances[PeerId] = Allowances(STORES, STORES_A_SECOND, MOST_PEERS)

    def __repr__(self) -> str:
        return f"Server({'serving' if self.serving else 'not serving'}, {self._store})"

    def serve(self, now: float, sender: PeerId, message: Message) -> Message:
        """The answer to a call; raises RemoteError, naming `sender`, if it is one that nobody should make."""
        match message:
            case FindNode():
                return self._find_node(now, sender, message)
            case FindRecords():
                return self._find_records(now, sender, message)
            case Store():
                return self._keep(now, sender, message)
        raise RemoteError(f"{type(message).__name__} is not asked of a server of the DHT", sender)

    def _find_node(self, now: float, sender: PeerId, call: FindNode) -> Message:
        if not self._questions.of(sender).take(now):
            return _TOO_MANY
        return Nodes(self._closer(call.target, sender, K))

    def _find_records(self, now: float, sender: PeerId, call: FindRecords) -> Message:
        if call.copy >= COPIES or len(call.subkeys) > MAX_WANTED:
            raise RemoteError(f"FindRecords for copy {call.copy} and {len(call.subkeys)} subkeys", sender)
        allowance = self._questions.of(sender)
        if not allowance.take(now):
            return _TOO_MANY
        records, held = self._store.find(now, call.key, call.subkeys, ANSWER)
        allowance.owe(now, len(records) / RECORDS_A_QUESTION)
        most = REPLICAS if records else K
        return Records(records, held, self._closer(place(call.key, call.copy), sender, most))

    def _keep(self, now: float, sender: PeerId, call: Store) -> Message:
        if call.copy >= COPIES or len(call.records) > MAX_STORE:
            raise RemoteError(f"Store of {len(call.records)} records for copy {call.copy}", sender)
        if not self.serving:
            return Refused("this node does not serve: others cannot reach it")
        if not self._stores.of(sender).take(now, len(call.records)):
            return _TOO_MANY
        results = self._vetted(now, sender, call.records)
        far = {key: self._is_far(place(key, call.copy)) for key in dict.fromkeys(each.key for each in call.records)}
        for number, record in enumerate(call.records):
            if results[number] is StoreResult.HELD:
                is_far = far[record.key]
                results[number] = StoreResult.TOO_FAR if is_far else self._store.put(now, record, call.copy, sender)
        return Stored(tuple(results))

    def _vetted(self, now: float, sender: PeerId, records: tuple[Record, ...]) -> list[StoreResult]:
        """For each record HELD if it may be held, or EXPIRED by our clock; raises RemoteError for bad ones."""
        results = []
        for record in records:
            try:
                check_record(record, self._wall.at(now), self._signer, sender)
                results.append(StoreResult.HELD)
            except Expired:
                results.append(StoreResult.EXPIRED)
        return results

    def _closer(self, target: Digest, sender: PeerId, most: int) -> tuple[Contact, ...]:
        """The `most` known servers nearest to `target`, without the sender."""
        near = self._others.closest(int.from_bytes(target, "big"), most + 1)
        return tuple(contact for contact in near if contact.peer != sender)[:most]

    def _is_far(self, target: Digest) -> bool:
        """Whether we know K servers that are nearer to `target` than we are, and that many are expected."""
        number = int.from_bytes(target, "big")
        near = self._others.closest(number, K)
        ours = self._own ^ number
        return len(near) == K and node_id(near[-1].peer) ^ number < ours and self._others.expected(ours) >= K


_TOO_MANY = Refused("too many requests: come back in a while")

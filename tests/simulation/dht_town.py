"""A DHT network of realistic size and use: it begins complete, and is then used for an hour of virtual time.

- Three in ten nodes serve; the others are behind NATs. Half of all are replaced within an hour, by new ones that know
  three servers.
- Records are put by nodes here and there, some are put anew with a higher sequence; gets come from other nodes, at any
  time in the hour, for records whose newest version is at least SETTLED old.
- At the start all routing tables are filled with random servers of each bucket, as they are after a long life.
"""

from __future__ import annotations

import gc
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from shoal.dht.effects import Got, Put
from shoal.dht.kademlia import Kademlia
from shoal.dht.keys import BITS, K, node_id
from shoal.dht.record import make_record
from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.messages.dht import Record
from tests.simulation.dht_world import DhtWorld, Node, Weather, make_peer
from tests.simulation.signing import FakeSigner

HOUR = 3600.0
SETTLED = 600.0  # seconds that a record is old before it is asked for
LIFE = 3 * 3600  # seconds that a record lives
SERVING = 0.3  # share of nodes that others can call
PATIENCE = 30.0  # seconds after which a get that has not ended is a failure

Make = Callable[..., Kademlia]


@dataclass(slots=True)
class Outcome:
    """The results of all gets and puts."""

    asks: Counter[Digest] = field(default_factory=Counter)
    hits: Counter[Digest] = field(default_factory=Counter)
    stale: int = 0
    got: list[Got] = field(default_factory=list)
    missing: list[Got] = field(default_factory=list)
    put: list[Put] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def success(self, *keys: Digest) -> float:
        """The share of gets, of these keys or of all, that gave the newest version."""
        return sum(self.hits[key] for key in keys or self.asks) / max(
            1, sum(self.asks[key] for key in keys or self.asks)
        )

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.hits.total()}/{self.asks.total()} found ({100 * self.success():.2f} %), {self.stale} stale; "
            f"get: {_median([g.hops for g in self.got])} hops, {_median([g.calls for g in self.got])} calls, "
            f"{_median(self.seconds):.2f} s; "
            f"put: {_median([p.calls for p in self.put])} calls, held by {_median([p.held for p in self.put])}; "
            f"missing: {_median([g.calls for g in self.missing])} calls"
        )


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0


class Town:
    """The network and its life."""

    def __init__(self, size: int, seed: int, weather: Weather | None = None, serving: float = SERVING) -> None:
        self.world = DhtWorld(seed, weather)
        self.rng = random.Random(f"town {seed}")
        self.outcome = Outcome()
        self.records: dict[Digest, tuple[Record, float]] = {}  # the newest version, and since when
        self.size, self._serving = size, serving
        self._asked: dict[int, tuple[Record, float]] = {}
        self._ticket = 0
        self.world.on_event = self._hear

    # -- birth --------------------------------------------------------------------------------------------

    def settle(self, makers: Sequence[tuple[Make, Sequence[PeerId]]] = ()) -> None:
        """Add all nodes, and fill their tables. `makers` make special servers, such as liars, for the given names."""
        odd = [self.world.add(peer, True, make) for make, peers in makers for peer in peers]
        serving = max(2, round(self.size * self._serving)) - len(odd)
        for number in range(self.size - len(odd)):
            self.world.add(make_peer(self.rng), number < serving)
        _introduce(self.world, self.rng)

    # -- life ---------------------------------------------------------------------------------------------

    def live(self, keys: Sequence[Digest], gets: int, seconds: float = HOUR) -> Outcome:
        """Replace half of the nodes per hour; put a record under each key, and a newer one under every second; read."""
        start, end = self.world.now, self.world.now + seconds
        self._plan(start, end, round(self.size / 2 * seconds / HOUR), self._replace)
        for number, key in enumerate(keys):
            at = start + self.rng.uniform(0.0, (seconds - SETTLED) / 2)
            self.world.at(at, self._put, key, 1)
            if number % 2 == 0:
                self.world.at(at + self.rng.uniform(60.0, 120.0), self._put, key, 2)
        self._plan(start + SETTLED + 180.0, end, gets, self._get)
        self._plan(start + SETTLED, end, max(10, gets // 10), self._get_missing)
        gc.disable()  # thousands of tables that live to the end: not to be searched for garbage again and again
        self.world.run(seconds + PATIENCE)
        gc.enable()
        return self.outcome

    def _plan(self, start: float, end: float, count: int, action: Callable[[], None]) -> None:
        for _ in range(count):
            self.world.at(self.rng.uniform(start, end), action)

    def _replace(self) -> None:
        """One node dies for good, and a new one comes. Special servers stay."""
        leaver = self._somebody(lambda node: type(node.core) is Kademlia)
        self.world.kill(leaver)
        newcomer = self.world.add(make_peer(self.rng), leaver.serves)
        self._meet(newcomer)

    def _meet(self, newcomer: Node) -> None:
        if newcomer.is_alive and not newcomer.core.has_joined:
            servers = [self._somebody(lambda node: node.serves and node is not newcomer) for _ in range(3)]
            contacts = [server.contact for server in servers]
            self.world.carry_out(newcomer, newcomer.core.meet(self.world.now, contacts))
            self.world.at(self.world.now + 35.0, self._meet, newcomer)

    def _put(self, key: Digest, sequence: int) -> None:
        author = self._somebody(_is_honest)
        if key in self.records:  # its author signs the next version, and any node may store it
            old = self.records[key][0]
            signer = FakeSigner(old.author)
        else:
            signer = FakeSigner(author.peer)
        expires = int(self.world.now) + LIFE
        record = make_record(key, "", sequence.to_bytes(100, "big"), sequence, expires, signer)
        self.records[key] = record, self.world.now
        self._ticket += 1
        self.world.carry_out(author, author.core.put(self.world.now, self._ticket, record))

    def _get(self) -> None:
        now = self.world.now
        ripe = [key for key, (_, since) in self.records.items() if since < now - SETTLED]
        if not ripe:
            return
        key = self.rng.choice(ripe)
        record = self.records[key][0]
        reader = self._somebody(lambda node: _is_honest(node) and node.peer != record.author)
        self.outcome.asks[key] += 1
        self._ticket += 1
        self._asked[self._ticket] = record, now
        self.world.carry_out(reader, reader.core.get(now, self._ticket, key))

    def _get_missing(self) -> None:
        reader = self._somebody(_is_honest)
        self._ticket += 1
        key = digest("missing", self._ticket.to_bytes(4, "big"))
        self.world.carry_out(reader, reader.core.get(self.world.now, self._ticket, key))

    def _somebody(self, fits: Callable[[Node], bool]) -> Node:
        peers = self._peers()
        while True:
            node = self.world.nodes.get(self.rng.choice(peers))
            if node is not None and fits(node):
                return node

    def _peers(self) -> list[PeerId]:
        return list(self.world.nodes)

    # -- what comes of it ---------------------------------------------------------------------------------

    def _hear(self, node: Node, event: Event) -> None:
        if isinstance(event, Put):
            self.outcome.put.append(event)
        elif isinstance(event, Got):
            self._judge(event)

    def _judge(self, got: Got) -> None:
        if got.ticket not in self._asked:
            self.outcome.missing.append(got)
            return
        wanted, asked_at = self._asked.pop(got.ticket)
        found = [each.record for each in got.found if each.record.author == wanted.author]
        newest = max((record.sequence for record in found), default=0)
        in_time = self.world.now - asked_at <= PATIENCE
        self.outcome.got.append(got)
        self.outcome.seconds.append(self.world.now - asked_at)
        self.outcome.hits[wanted.key] += newest >= wanted.sequence and in_time
        self.outcome.stale += 0 < newest < wanted.sequence


def _is_honest(node: Node) -> bool:
    return type(node.core) is Kademlia and node.core.has_joined


def _introduce(world: DhtWorld, rng: random.Random) -> None:
    """Fill every table with K random servers of each bucket, as heard some time ago."""
    servers = sorted((node_id(node.peer), node) for node in world.nodes.values() if node.serves)
    ids = [number for number, _ in servers]
    for node in world.nodes.values():
        mine = node_id(node.peer)
        for bits in range(BITS, 0, -1):
            low = (mine ^ 1 << (bits - 1)) >> (bits - 1) << (bits - 1)
            first, last = bisect_left(ids, low), bisect_left(ids, low + (1 << (bits - 1)))
            if bits < BITS - 40:
                break
            chosen = range(first, last) if last - first <= K else rng.sample(range(first, last), K)
            _know(world.now, node, bits, [servers[index][1] for index in chosen], rng)


def _know(now: float, node: Node, bits: int, servers: list[Node], rng: random.Random) -> None:
    """Put `servers` into a bucket directly, as if they had answered."""
    table = node.core._table
    for server in servers:
        table.add(now - rng.uniform(0.0, 600.0), server.contact)
    for found, bucket in table.buckets():
        if found == bits:
            bucket.refreshed, bucket.is_settled = now - rng.uniform(0.0, 600.0), True
    node.core._upkeep.has_joined = True


def keys(count: int) -> list[Digest]:
    """`count` different keys."""
    return [digest("test key", number.to_bytes(4, "big")) for number in range(count)]

"""One put: finds the REPLICAS nearest servers of each place of a key, and asks each of them to hold the record.

Rules:
- Where our table holds all the nearest, no lookup is made, unless one of them answers that it knows enough nearer
  servers (TOO_FAR): then our table is incomplete, and a lookup follows.
- A server that does not answer is replaced by the next nearest, SPARE times for each place. One that refuses is not
  replaced: the next one would refuse for the same reason.
- One attacker may control a crowded place (shoal.dht.region): there all servers of the region get the record.
- If we are among the nearest ourselves, we hold the record like any other server.
- The put ends when each place has all its replicas or no server is left to ask. A late answer counts until then.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.dht.calls import Calls
from shoal.dht.effects import Put
from shoal.dht.keys import COPIES, REPLICAS, K, node_id, place
from shoal.dht.lookup import Lookup, State
from shoal.dht.region import SWEEP_SECONDS, Region, Sweep, is_crowded
from shoal.dht.table import Table
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, Record, Store, Stored, StoreResult

SPARE = 5  # further servers of a place that may be asked in place of silent ones

StoreLocally = Callable[[float, Record, int], StoreResult]
"""keep(now, record, copy): holds the record on this node."""


class PutAtPlace:
    """Puts the record at one of its places. `keep` is None if this node does not serve."""

    def __init__(
        self,
        record: Record,
        copy: int,
        me: PeerId,
        table: Table,
        calls: Calls,
        keep: StoreLocally | None,
        on_move: Callable[[float], None],
    ) -> None:
        target = place(record.key, copy)
        self._me, self._table, self._calls, self._keep, self._on_move = me, table, calls, keep, on_move
        self._target = int.from_bytes(target, "big")
        self._store = Store((record,), copy)
        self._lookup = Lookup(me, table, calls, target, REPLICAS, self._looked)
        self._sweep: Sweep | None = None
        self._is_looking = self._has_looked = False
        self._near: set[PeerId] = set()  # the nearest servers, and spare ones
        self._spare: list[Contact] = []  # those of them not asked yet, nearest first
        self._waiting: set[PeerId] = set()
        self._said: dict[PeerId, StoreResult] = {}
        self._calls_made = 0
        self.wanted = 0
        self.hops = 0
        self.is_over = False

    @property
    def held(self) -> int:
        """How many of the nearest servers have said that they hold the record."""
        return sum(self._said.get(peer) is StoreResult.HELD for peer in self._near)

    @property
    def refusals(self) -> list[StoreResult]:
        """The reasons of the nearest servers that refused it."""
        return [said for peer, said in self._said.items() if said is not StoreResult.HELD and peer in self._near]

    @property
    def calls_made(self) -> int:
        """How many calls it made."""
        return self._calls_made + self._lookup.calls_made + (self._sweep.calls_made if self._sweep else 0)

    def begin(self, now: float) -> None:
        """Find the servers of the place, then ask them."""
        if self._table.is_complete(self._target, REPLICAS, now):
            self._ask_nearest(now, self._table.closest(self._target, K))
        else:
            self._look(now)

    def _look(self, now: float) -> None:
        self._is_looking = self._has_looked = True
        self._lookup.begin(now, trusting=False)

    def _looked(self, now: float) -> None:
        if not self._lookup.is_over or not self._is_looking:
            return
        self._is_looking = False
        self.hops += self._lookup.hops
        found = [candidate for candidate in self._lookup.nearest(K) if candidate.state is State.ANSWERED]
        self._ask_nearest(now, [candidate.contact for candidate in found])

    def _ask_nearest(self, now: float, servers: list[Contact]) -> None:
        if is_crowded(self._target, servers, self._table):
            self._look_around(now, servers[:REPLICAS])
            return
        servers = [each for each in servers if self._said.get(each.peer) is not StoreResult.TOO_FAR]
        ours = self._keep is not None and self._is_ours(servers)
        near = servers[: REPLICAS + SPARE]
        self._spread(now, near, REPLICAS - ours, ours)

    def _look_around(self, now: float, nearest: list[Contact]) -> None:
        self._is_looking = self._has_looked = True
        self._nearest = nearest
        self._region = Region.around(self._target, self._table)
        self._sweep = Sweep(self._me, self._table, self._calls, self._region, now + SWEEP_SECONDS, self._swept)
        self._sweep.begin(now)

    def _swept(self, now: float, found: list[Contact]) -> None:
        assert self._sweep is not None
        self._is_looking = False
        self.hops += self._sweep.hops
        servers = list({each.peer: each for each in (*self._nearest, *found)}.values())
        self._spread(now, servers, len(servers), self._keep is not None and self._region.holds(self._me))

    def _spread(self, now: float, servers: list[Contact], wanted: int, ours: bool) -> None:
        """Ask the first `wanted` servers to hold it, the others are spare; hold it ourselves if it is `ours`."""
        self.hops += 1
        self._near = {each.peer for each in servers}
        if ours:
            self._hold(now)
        self.wanted = min(wanted, len(servers)) + ours
        self._spare = [each for each in servers if each.peer not in self._said]
        missing = sum(each.peer not in self._said for each in servers[:wanted])
        for _ in range(missing):
            self._ask(now)
        self._end_if_done(now)

    def _is_ours(self, servers: list[Contact]) -> bool:
        mine = node_id(self._me) ^ self._target
        return sum(node_id(each.peer) ^ self._target < mine for each in servers[:REPLICAS]) < REPLICAS

    def _hold(self, now: float) -> None:
        self._near.add(self._me)
        if self._keep is not None and self._me not in self._said:
            self._said[self._me] = self._keep(now, self._store.records[0], self._store.copy)

    def _ask(self, now: float) -> None:
        server = self._spare.pop(0)
        self._waiting.add(server.peer)
        self._calls_made += 1
        self._calls.ask(now, server, self._store, self)

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Note whether a server holds the record, or why not."""
        if not isinstance(answer, Stored) or len(answer.results) != 1:
            raise RemoteError("answers Store with something else", contact.peer)
        [self._said[contact.peer]] = answer.results
        self._waiting.discard(contact.peer)
        self._end_if_done(now)

    def failed(self, now: float, contact: Contact) -> None:
        """Ask a spare server in place of a silent one."""
        if contact.peer in self._waiting:
            self._waiting.remove(contact.peer)
            if self._spare:
                self._ask(now)
        self._end_if_done(now)

    def _end_if_done(self, now: float) -> None:
        if self.is_over or self._is_looking or self._waiting:
            return
        if StoreResult.TOO_FAR in self._said.values() and not self._has_looked:
            self._look(now)
            return
        self.is_over = True
        self._on_move(now)


class PutTask:
    """One put, from `begin` until `is_over`; it ends with one Put."""

    def __init__(self, ticket: int, record: Record, calls: Calls) -> None:
        self._ticket, self._record, self._calls = ticket, record, calls
        self._places: list[PutAtPlace] = []
        self.is_over = False

    def begin(self, now: float, me: PeerId, table: Table, keep: StoreLocally | None) -> None:
        """Put the record at all places side by side; `keep` holds it on this node, if we serve."""
        for copy in range(COPIES):
            self._places.append(PutAtPlace(self._record, copy, me, table, self._calls, keep, self._move))
        for placing in self._places:
            placing.begin(now)

    def _move(self, now: float) -> None:
        if not all(placing.is_over for placing in self._places):
            return
        self.is_over = True
        self._calls.tell(
            Put(
                self._ticket,
                held=sum(placing.held for placing in self._places),
                wanted=sum(placing.wanted for placing in self._places),
                refusals=tuple(dict.fromkeys(reason for placing in self._places for reason in placing.refusals)),
                hops=max(placing.hops for placing in self._places),
                calls=sum(placing.calls_made for placing in self._places),
            )
        )

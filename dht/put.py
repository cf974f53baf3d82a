"""One put: find the REPLICAS nearest servers of each place of a key, and have each hold the record.

Rules:
- Where our table holds all the nearest, they are not looked for again; unless one of those says that it knows enough
  servers that are nearer: then our table is still a newcomer's.
- A server that does not answer is replaced by the next nearest, SPARE times for each place. One that refuses is not:
  its reason would be the next one's too.
- If we are among the nearest ourselves, we hold the record like any other.
- The put ends when each place has all its replicas or nobody is left to ask. A late answer counts until then.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.dht.calls import Calls
from shoal.dht.effects import Put
from shoal.dht.keys import COPIES, REPLICAS, K, place
from shoal.dht.lookup import Lookup
from shoal.dht.path import State
from shoal.dht.server import TOO_FAR
from shoal.dht.table import Table
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact, Record, Store, Stored
from shoal.protocol.wire import Message

SPARE = 5  # servers of a place that are asked in the stead of silent ones

Keep = Callable[[float, Record, int], str]
"""keep(now, record, copy): hold it ourselves; why not, or an empty string."""


class Placing:
    """The record at one of its places."""

    def __init__(self, record: Record, copy: int, calls: Calls, on_move: Callable[[float], None]) -> None:
        self._store = Store((record,), copy)
        self._calls = calls
        self._on_move = on_move
        self._lookup: Lookup | None = None
        self._has_looked = self._is_astray = False  # astray: somebody knows nearer servers than those that we asked
        self._servers: list[Contact] = []  # not asked yet, nearest first
        self._waiting: set[PeerId] = set()
        self._holds: dict[PeerId, bool] = {}  # who has answered whether it does, ourselves included
        self._ours = 0  # replicas that are our own
        self.wanted = 0
        self.calls_made = 0
        self.hops = 0
        self.refusals: list[str] = []
        self.is_over = False

    @property
    def held(self) -> int:
        """How many replicas there are, as far as we were told."""
        return sum(self._holds.values())

    def begin(self, now: float, me: PeerId, table: Table, keep: Keep | None) -> None:
        """Find the place's servers, then ask them."""
        record, copy = self._store.records[0], self._store.copy
        target = place(record.key, copy)
        number = int.from_bytes(target, "big")
        self._lookup = Lookup(me, table, self._calls, target, REPLICAS, self._found)
        if keep is not None and table.rank(number, REPLICAS) < REPLICAS:
            self._ours = 1
            self._note(me, keep(now, record, copy))
        if table.is_complete(number, REPLICAS, now):
            self._begin_storing(now, table.closest(number, K))
        else:
            self._look_up(now, self._lookup)

    def _look_up(self, now: float, lookup: Lookup) -> None:
        self._has_looked = True
        self.refusals = [reason for reason in self.refusals if reason != TOO_FAR]
        lookup.begin(now)

    def _found(self, now: float) -> None:
        lookup = self._lookup
        if lookup is None or not lookup.is_over:
            return
        self.calls_made += lookup.calls_made
        self.hops += lookup.hops
        near = [candidate for candidate in lookup.nearest(K) if candidate.state is State.ANSWERED]
        self._begin_storing(now, [candidate.contact for candidate in near])

    def _begin_storing(self, now: float, servers: list[Contact]) -> None:
        self.hops += 1
        nearest = servers[: REPLICAS - self._ours]
        self.wanted = len(nearest) + self._ours
        self._servers = [each for each in servers[: REPLICAS + SPARE] if each.peer not in self._holds]
        for _ in range(sum(each.peer not in self._holds for each in nearest)):
            self._ask(now)
        self._end_if_done(now)

    def _ask(self, now: float) -> None:
        server = self._servers.pop(0)
        self._waiting.add(server.peer)
        self.calls_made += 1
        self._calls.ask(now, server, self._store, self)

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """A server holds the record, or says why not."""
        if not isinstance(answer, Stored) or len(answer.refusals) != 1:
            raise RemoteError("answers Store with something else", contact.peer)
        self._waiting.discard(contact.peer)
        self._note(contact.peer, answer.refusals[0])
        self._end_if_done(now)

    def failed(self, now: float, contact: Contact) -> None:
        """A server is silent."""
        self._waiting.discard(contact.peer)
        if self._servers and not self.is_over:
            self._ask(now)
        self._end_if_done(now)

    def _note(self, peer: PeerId, refusal: str) -> None:
        self._holds[peer] = not refusal
        self._is_astray |= refusal == TOO_FAR
        if refusal:
            self.refusals.append(refusal)

    def _end_if_done(self, now: float) -> None:
        if self.is_over or self._waiting:
            return
        if self._is_astray and not self._has_looked and self._lookup is not None:
            self._look_up(now, self._lookup)
            return
        self.is_over = True
        self._on_move(now)


class PutTask:
    """One put, from `begin` until `is_over`; its end is told."""

    def __init__(self, ticket: int, record: Record, calls: Calls) -> None:
        self._ticket = ticket
        self._calls = calls
        self._places = [Placing(record, copy, calls, self._move) for copy in range(COPIES)]
        self.is_over = False

    def begin(self, now: float, me: PeerId, table: Table, keep: Keep | None) -> None:
        """All places side by side; `keep` holds a record here, if we serve."""
        for placing in self._places:
            placing.begin(now, me, table, keep)

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

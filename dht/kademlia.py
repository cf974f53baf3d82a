"""The DHT core: finds other peers and the records that they sign, and serves others if this node can be reached.

Kademlia (Maymounkov and Mazieres 2002), with disjoint paths (S/Kademlia 2007) and records at several places. It is
driven like every core (see shoal.dht.effects). Its parts, each in its file:

    table     known servers       greeting  how servers enter it      upkeep    joining, and staying joined
    calls     calls under way     lookup    the nearest servers       region    places under attack
    get, put  reading, writing    handover  records follow the nearest servers
    server    answers to others   store     records held              vetting   checks of named contacts

This file routes commands, calls of others, answers and timers to them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from shoal.dht.calls import Calls
from shoal.dht.clock import WallClock
from shoal.dht.effects import Effect
from shoal.dht.get import Get
from shoal.dht.greeting import Greeter
from shoal.dht.handover import Handover
from shoal.dht.put import PutTask
from shoal.dht.record import CachingSigner
from shoal.dht.server import Server
from shoal.dht.store import RecordStore
from shoal.dht.table import Table
from shoal.dht.upkeep import Upkeep
from shoal.protocol.base.effects import Timer
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, FindRecords, Greet, Greeted, Record, StoreResult

MAX_RUNNING = 64  # gets and puts at once
MAX_QUEUED = 4096  # that wait for their turn
ANSWER = 1 << 20  # bytes of our own records that a get reads

Task = Get | PutTask
Begin = Callable[[float], Task]


class Kademlia:
    """The core of one node."""

    def __init__(self, me: PeerId, signer: Signer, rng: random.Random) -> None:
        self.me = me
        self.wall = WallClock()
        self._signer = CachingSigner(signer)
        self._table = Table(me)
        self._calls = Calls(self._table)
        self._store = RecordStore(me, wall=self.wall)
        self._server = Server(self._signer, self._store, self._table, serving=False, wall=self.wall)
        self._greeter = Greeter(me, self._table, self._calls, self._known, self.wall)
        self._upkeep = Upkeep(me, rng, self._table, self._calls, self._greeter)
        self._handover = Handover(me, rng, self._table, self._calls, self._store)
        self._running: list[Task] = []
        self._queued: deque[Begin] = deque()
        self._on_timer: dict[str, Callable[[float], None]] = {
            "tick": self._upkeep.tick,
            "republish": self._handover.republish,
        }

    # -- commands -----------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Begin to maintain the table and the records."""
        self._upkeep.start(now)
        self._handover.start(now)
        return self._calls.drain()

    def set_contact(self, now: float, addresses: tuple[str, ...], serves: bool) -> list[Effect]:
        """Set our addresses, and whether we serve; the servers in our table are told.

        If we begin to serve, all connected peers are told, too: they may know no other server.
        """
        changed = (addresses, serves) != (self._greeter.addresses, self._greeter.serves)
        begins = serves and not self._greeter.serves
        self._greeter.addresses, self._greeter.serves = addresses, serves
        self._server.serving = serves
        if changed:
            told = [known.contact for known in self._table.known()]
            if begins:  # connected peers may have been told that we do not
                told += [Contact(peer, ()) for peer in self._calls.linked if peer not in self._table]
            for contact in told:
                self._greeter.greet(now, contact, anew=True)
        return self._finish(now)

    def link(self, now: float, peer: PeerId, up: bool) -> list[Effect]:
        """A connection was made or lost. A newly connected peer may be part of the DHT, and is greeted."""
        self._calls.link(peer, up)
        return self.meet(now, [Contact(peer, ())]) if up else []

    def meet(self, now: float, contacts: Sequence[Contact]) -> list[Effect]:
        """Greet peers known from elsewhere; those that serve enter the table, and the join begins."""
        for contact in contacts:
            self._greeter.greet(now, contact)
        return self._finish(now)

    def get(
        self, now: float, ticket: int, key: Digest, subkeys: tuple[tuple[PeerId, str], ...] = (), quorum: int = 2
    ) -> list[Effect]:
        """Read the records under `key`, only those of `subkeys` if any are given; ends with one Got."""

        def begin(now: float) -> Task:
            task = Get(ticket, FindRecords(key, 0, subkeys), quorum, self._signer, self._calls, self.wall)
            held, _ = self._store.find(now, key, subkeys, ANSWER)
            task.begin(now, self.me, self._table, held)
            return task

        return self._begin(now, begin)

    def put(self, now: float, ticket: int, record: Record) -> list[Effect]:
        """Store a record where it belongs; ends with one Put."""

        def begin(now: float) -> Task:
            task = PutTask(ticket, record, self._calls)
            task.begin(now, self.me, self._table, self._keep if self._greeter.serves else None)
            return task

        return self._begin(now, begin)

    def leave(self, now: float) -> list[Effect]:
        """Hand over the records that we hold, and do nothing from now on."""
        if self._greeter.serves:
            self._handover.leave(now)
        effects = self._calls.drain()
        self._calls.stop()
        self._queued.clear()
        return effects

    # -- from the network ---------------------------------------------------------------------------------

    def serve(self, now: float, sender: PeerId, message: Message) -> tuple[Message, list[Effect]]:
        """The answer to a call; raises RemoteError, before anything has changed, if no honest peer makes that call."""
        if isinstance(message, Greet):
            answer: Message = self._greeter.serve(now, sender, message)
        else:
            answer = self._server.serve(now, sender, message)
        return answer, self._finish(now)

    def greeted(self, now: float) -> Greeted:
        """Our answer to a greeting, as of now: the shell may have waited until we knew our addresses."""
        return self._greeter.greeted(now)

    def answered(self, now: float, number: int, answer: Message) -> list[Effect]:
        """Take the answer to a call of ours."""
        self._calls.answered(now, number, answer)
        return self._finish(now)

    def failed(self, now: float, number: int) -> list[Effect]:
        """A call of ours got no answer."""
        self._calls.failed(now, number)
        return self._finish(now)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer that we asked for is due."""
        if self._calls.accept(now, timer) and timer.name in self._on_timer:
            self._on_timer[timer.name](now)
        return self._finish(now)

    # -- questions ----------------------------------------------------------------------------------------

    def contacts(self) -> list[Contact]:
        """The servers that we know, most recently heard first."""
        known = sorted(self._table.known(), key=lambda each: (each.silences, -each.seen))
        return [each.contact for each in known]

    @property
    def records_held(self) -> int:
        """How many records we hold for others."""
        return len(self._store)

    @property
    def has_joined(self) -> bool:
        """Whether we have looked up our neighbourhood in a network with servers."""
        return self._upkeep.has_joined

    def population(self) -> float:
        """An estimate of how many servers there are."""
        return self._table.population()

    # -- inside -------------------------------------------------------------------------------------------

    def _begin(self, now: float, begin: Begin) -> list[Effect]:
        if len(self._queued) >= MAX_QUEUED:
            raise LocalError(
                f"more than {MAX_QUEUED} gets and puts are waiting; ask again when some have ended", code="busy"
            )
        self._queued.append(begin)
        return self._finish(now)

    def _finish(self, now: float) -> list[Effect]:
        """Begin queued gets and puts in place of those that have ended, and return the effects."""
        self._running = [task for task in self._running if not task.is_over]
        while self._queued and len(self._running) < MAX_RUNNING:
            task = self._queued.popleft()(now)
            if not task.is_over:
                self._running.append(task)
        return self._calls.drain()

    def _known(self, now: float, contact: Contact, serves: bool) -> None:
        """A peer that was not in the table has answered our greeting."""
        self._upkeep.met(now, contact, serves)
        if serves and self._greeter.serves:
            self._handover.welcome(now, contact)

    def _keep(self, now: float, record: Record, copy: int) -> StoreResult:
        return self._store.put(now, record, copy, self.me)

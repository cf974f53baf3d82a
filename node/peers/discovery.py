"""The DHT on the real network and clock: the shell around `Kademlia`.

Rules:
- Calls use the control stream that two nodes have anyway: opening a stream of their own would cost milliseconds. The
  protocol id of that stream is the version of everything on it.
- The clock is monotonic, and goes on while the machine sleeps. Only records use the wall clock; the difference is read
  each time, so setting it wrong and right again has no lasting effect.
- Addresses that a peer names are reduced to those that are meaningful here (shoal.dht.scope) before the core sees them.
- We serve while others can dial us (shoal.dht.reachability). Connections that were idle for a while are closed
  (`LastUse`).
- Sequence numbers are milliseconds since 1970, and always higher than the last one, so what we write after a restart
  wins. If servers hold a higher number of ours, because a clock was ahead before the restart, we go on from that one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from shoal.dht.effects import Blamed, Call, ClockOff, Effect, Got, Put
from shoal.dht.kademlia import Kademlia
from shoal.dht.reachability import Verdict
from shoal.dht.record import RECORDS, make_record
from shoal.dht.scope import Scope, scope_between, within_scope, worth_dialling
from shoal.node.api.answers import Dht
from shoal.node.base.logs import warn
from shoal.node.peers.dialback import DialBack
from shoal.protocol.base.effects import Event, Tell, Timer, Wake
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, FindNode, FindRecords, Greet, Greeted, Store, StoreResult, TryMe
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.calls import Serve
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import interface_addresses
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.tasks import Tasks

# -- idle connections ----------------------------------------------------------------------------------------------


MAX_SPARE = 48  # connections with peers that are in none of our runs
IDLE = 60.0  # seconds without a call
MAX_SPARE_OF_CLIENT, LONG_IDLE = 8, 300.0  # a node that does not serve also closes those beyond 8 after 300 s
MAX_KNOWN = 4096  # peers whose last call is remembered


class LastUse:
    """When which peer called us or was called."""

    def __init__(self) -> None:
        self._at: OrderedDict[PeerId, float] = OrderedDict()

    def note(self, now: float, peer: PeerId) -> None:
        """A call in either direction."""
        self._at[peer] = now
        self._at.move_to_end(peer)
        if len(self._at) > MAX_KNOWN:
            self._at.popitem(last=False)

    def to_close(
        self, now: float, linked: Iterable[PeerId], needed: Collection[PeerId], serves: bool = True
    ) -> list[PeerId]:
        """The connections to close: those beyond MAX_SPARE, or MAX_SPARE_OF_CLIENT, that were idle for longest."""
        spare = [peer for peer in linked if peer not in needed]
        for peer in spare:
            self._at.setdefault(peer, now)
        spare.sort(key=lambda peer: self._at[peer], reverse=True)
        most = MAX_SPARE if serves else MAX_SPARE_OF_CLIENT
        unused = [peer for peer in spare[most:MAX_SPARE] if self._at[peer] + LONG_IDLE <= now]
        return unused + [peer for peer in spare[MAX_SPARE:] if self._at[peer] + IDLE <= now]


SERVED = (Greet, FindNode, FindRecords, Store)
TIDY_EVERY = 10.0  # seconds between two checks for idle connections
STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # without BOOTTIME the clock may stop in sleep
GOODBYE = 1.0  # seconds for handing over our records to other servers
MAX_BLAMED = 1024  # peers whose blame was logged

End = TypeVar("End", Got, Put)

log = logging.getLogger("shoal.dht")


class Discovery:
    """Gets and puts records; serves them to others. `needed` says whether a run needs the connection with a peer."""

    def __init__(self, identity: Identity, network: Network, needed: Callable[[PeerId], bool] = lambda peer: False):
        self._on_news: Callable[[], None] = lambda: None
        self._network = network
        self._needed = needed
        self._signer = identity.signer(RECORDS)
        self._core = Kademlia(identity.peer, self._signer, random.Random())
        self._dial_back = DialBack(network, self._settle)
        self._last_use = LastUse()
        self._kept: frozenset[PeerId] = frozenset()
        self._waiting: dict[int, asyncio.Future[Event]] = {}
        self._tickets = itertools.count(1)
        self._sequence = 0
        self._blamed: set[PeerId] = set()
        self._tasks = Tasks(lambda error: log.error("the DHT made a mistake", exc_info=error))
        self._running = False

    # -- life -----------------------------------------------------------------------------------------------

    def start(self, on_news: Callable[[], None] = lambda: None) -> None:
        """Joins the DHT; the network must have been started.

        `on_news` is called when our verdict, or the set of known servers, has changed.
        """
        self._on_news = on_news
        self._running = True
        self._carry_out(self._core.start(self.now()))
        self._settle(self._dial_back.verdict)
        self._tasks.spawn(self._dial_back.run())
        self._tasks.spawn(self._tidy())

    async def close(self) -> None:
        """Leaves the DHT; calls that still wait for an answer raise TransportError."""
        if not self._running:
            return
        last_words = self._carry_out(self._core.leave(self.now()))
        self._running = False
        if last_words:
            await asyncio.wait(last_words, timeout=GOODBYE)
        await self._tasks.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(TransportError("the node is ending"))

    def now(self) -> float:
        """Seconds of the monotonic clock; also tells the core how far the wall clock is ahead of it."""
        now = time.clock_gettime(STEADY)
        self._core.wall.ahead = time.time() - now
        return now

    # -- public operations ----------------------------------------------------------------------------------

    async def get(self, key: Digest, subkeys: Sequence[tuple[PeerId, str]] = (), quorum: int = 2) -> Got:
        """The records under `key`; TransportError if the node ends meanwhile."""
        ticket, wanted = next(self._tickets), tuple(subkeys)
        return await self._ends(ticket, lambda now: self._core.get(now, ticket, key, wanted, quorum), Got)

    async def put(self, key: Digest, subkey: str, value: bytes, lifetime: float) -> Put:
        """Stores `value` under (`key`, `subkey`) for `lifetime` seconds; a later put of ours replaces it."""
        put = await self._put(key, subkey, value, lifetime)
        if StoreResult.OUTDATED in put.refusals:
            self._sequence = max(self._sequence, await self._last_sequence(key, subkey))
            put = await self._put(key, subkey, value, lifetime)
        return put

    async def _put(self, key: Digest, subkey: str, value: bytes, lifetime: float) -> Put:
        ticket, clock = next(self._tickets), time.time()
        self._sequence = max(self._sequence + 1, int(1000 * clock))
        record = make_record(key, subkey, value, self._sequence, int(clock + lifetime), self._signer)
        return await self._ends(ticket, lambda now: self._core.put(now, ticket, record), Put)

    async def _last_sequence(self, key: Digest, subkey: str) -> int:
        """The sequence number of the latest record of ours that is held under (`key`, `subkey`); 0 if none is found."""
        me = self._signer.peer
        records = [each.record for each in (await self.get(key, ((me, subkey),))).found]
        return max((each.sequence for each in records if (each.author, each.subkey) == (me, subkey)), default=0)

    def link(self, peer: PeerId, up: bool) -> None:
        """A connection was made or lost."""
        if not self._running:
            return
        if up:
            self._dial_back.link()
        self._carry_out(self._core.link(self.now(), peer, up))

    def moved(self) -> None:
        """Our addresses have changed: connected peers are asked to try them."""
        self._dial_back.link()

    def calls(self) -> dict[type[Message], Serve]:
        """The handlers of the DHT's calls, by message type."""
        return dict.fromkeys((*SERVED, TryMe), self.on_call)

    def on_call(self, peer: PeerId, message: Message) -> Message | Coroutine[Any, Any, Message]:
        """Our answer to a call of the DHT."""
        if not self._running:
            return Refused("not yet a node of the DHT, or no longer")
        self._last_use.note(self.now(), peer)
        if isinstance(message, TryMe):
            return self._dial_back.try_for(peer, message)
        answer, effects = self._core.serve(self.now(), peer, self._heard(peer, message))
        self._carry_out(effects)
        return self._greeted() if isinstance(message, Greet) else answer

    async def _greeted(self) -> Message:
        """Our answer to a greeting. It waits for the first verdict: a peer told that we do not serve stays away."""
        await self._dial_back.first_verdict()
        return self._core.greeted(self.now())

    def worth_dialling(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Of the addresses in a record, those at which we might reach its author."""
        horizon = max((scope_between(link.addresses) for link in self._network.links()), default=Scope.LOOPBACK)
        return worth_dialling(addresses, horizon, interface_addresses())

    def used(self, peer: PeerId) -> None:
        """A call that is not the DHT's went over the connection with a peer, in either direction."""
        if self._running:
            self._last_use.note(self.now(), peer)

    def keep(self, peers: Sequence[PeerId]) -> None:
        """Connections with these peers are not closed, even if they are idle."""
        self._kept = frozenset(peers)

    @property
    def verdict(self) -> Verdict:
        """Where others can reach us."""
        return self._dial_back.verdict

    @property
    def is_doubtful(self) -> bool:
        """Whether a peer has been dialling us for so long that probably none can."""
        return self._dial_back.is_doubtful

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is not about to change."""
        return self._dial_back.is_settled

    def look_again(self) -> None:
        """Have others try again to dial us."""
        self._dial_back.look_again()

    def contacts(self) -> list[Contact]:
        """The servers that we know."""
        return self._core.contacts()

    def as_json(self) -> Dht:
        """For `status`."""
        return {"servers": len(self.contacts()), "serves": self.verdict.serves, "records": self._core.records_held}

    # -- effects of the core --------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> list[asyncio.Task[None]]:
        """Carries out the effects; returns the calls that were started."""
        calls = []
        for effect in effects:
            match effect:
                case Call():
                    calls.append(self._tasks.spawn(self._ask(effect)))
                case Wake(after, timer):
                    asyncio.get_running_loop().call_later(after, self._fire, timer)
                case Tell(event):
                    self._hear(event)
        return calls

    def _fire(self, timer: Timer) -> None:
        if self._running:
            self._carry_out(self._core.fire(self.now(), timer))

    async def _ask(self, ask: Call) -> None:
        peer = ask.to.peer
        self._last_use.note(self.now(), peer)
        if ask.to.addresses and not self._network.remote_addresses(peer):
            self._network.remember(peer, ask.to.addresses)
        try:
            answer = self._heard(peer, await self._network.call(peer, ask.message))
        except RemoteError as error:
            answer = Refused(error.reason)
        except TransportError:
            self._carry_out(self._core.failed(self.now(), ask.number))
            return
        self._carry_out(self._core.answered(self.now(), ask.number, answer))
        if isinstance(answer, Greeted) and answer.serves:
            self._on_news()

    def _heard(self, peer: PeerId, message: Message) -> Message:
        return within_scope(message, scope_between(self._network.remote_addresses(peer)))

    def _hear(self, event: Event) -> None:
        match event:
            case Got(ticket) | Put(ticket):
                future = self._waiting.get(ticket)
                if future is not None and not future.done():
                    future.set_result(event)
            case Blamed(peer, reason):
                if peer not in self._blamed and len(self._blamed) < MAX_BLAMED:
                    self._blamed.add(peer)
                    warn(log, "peer-blamed", f"peer {peer} of the DHT {reason}")
            case ClockOff(ahead):
                where = f"{ahead} s ahead" if ahead > 0 else f"{-ahead} s behind"
                warn(
                    log, "clock-off", f"this machine's clock is {where} of the others': what it writes expires wrongly"
                )

    async def _ends(self, ticket: int, begin: Callable[[float], Sequence[Effect]], end: type[End]) -> End:
        if not self._running:
            raise LocalError("this node is no node of the DHT yet, or no longer", code="not-ready")
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._carry_out(begin(self.now()))
            event = await future
            assert isinstance(event, end)
            return event
        finally:
            del self._waiting[ticket]

    # -- our own contact ------------------------------------------------------------------------------------

    def _settle(self, verdict: Verdict) -> None:
        """A new verdict: publishes the addresses at which others have reached us, and whether we serve."""
        self._network.reachability = verdict.reachability
        self._on_news()  # before others learn that we serve, as they may then ask us at once to be their relay
        addresses = verdict.addresses or self._network.own_addresses()
        self._carry_out(self._core.set_contact(self.now(), addresses, verdict.serves))

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_EVERY)
            lent, linked = self._network.relay_accounts.users, [link.peer for link in self._network.links()]
            needed = {peer for peer in linked if peer in lent or peer in self._kept or self._needed(peer)}
            for peer in self._last_use.to_close(self.now(), linked, needed, self.verdict.serves):
                await self._network.disconnect(peer, "nothing was asked over it for a while")

"""libp2p as asyncio sees it: connect to peers, open and accept byte streams. host.py does it.

Rules:
- Everything here belongs to the asyncio loop that called `start`; a call crosses to the trio thread and back.
- Failures of the network are TransportError. A cancelled call runs on over there; a reset stream stops it.
- Back-pressure is the peer's: a write returns when its bytes are on the connection. A short one that need not wait is
  made right here, without crossing to the other thread and back, which costs more than all else of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import is_relayed
from shoal.protocol.base.paths import RELAYED, Route, best_path
from shoal.protocol.net.circuit.accounts import LIMITS, Limits, RelayAccounts
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.libp2p.raw_stream import Buffer, RawStream
from shoal.protocol.net.measure.journal import OK, Journal, Step, Way
from shoal.protocol.net.measure.link import ConnectionInfo, LinkReport
from shoal.protocol.net.measure.rates import Gauge
from shoal.protocol.net.system.bridge import Bridge
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.throttle import Throttle
from shoal.protocol.net.transport.host import TrioHost, Usage

STEP = 1 << 17  # bytes: the least that a reader is allowed at a time

Connection = Any  # libp2p's, only passed on

log = logging.getLogger(__name__)


class Stream:
    """One byte stream with a peer, for one reader and one writer."""

    def __init__(self, bridge: Bridge, raw: RawStream) -> None:
        self._bridge = bridge
        self._raw = raw
        self._allowed = 0  # bytes since the stream was opened
        self._under_way = 0  # writes that may not have come to their end
        self._writing: asyncio.Future[None] | None = None  # the last of them

    @property
    def is_open(self) -> bool:
        """Whether a write has a chance; costs nothing, and False is final."""
        return self._raw.is_open

    @property
    def is_relayed(self) -> bool:
        """Whether it lies on a connection by a relay."""
        return self._raw.is_relayed

    def listen(self, feed: Callable[[bytes], None], ended: Callable[[BaseException], None]) -> None:
        """Have `feed` called with what comes, as far as that is allowed; `ended` follows once, with the reason."""
        self._bridge.follow(ended, self._raw.pump, partial(self._bridge.tell, feed))

    def allow(self, upto: int) -> None:
        """Let so many bytes come, counted from the first; they come without being asked for, as each question would
        cost a way there and back. So `upto` should be well ahead: small steps are not passed on.
        """
        if upto - self._allowed >= STEP:
            self._bridge.post(self._raw.allow, upto - self._allowed)
            self._allowed = upto

    async def write(self, *parts: Buffer) -> None:
        """Put all bytes on the connection, as fast as the peer reads."""
        self._under_way += 1  # for ever, if we are cancelled: then it goes on over there
        self._writing = self._bridge.begin(self._raw.write, parts)
        await self._writing
        self._under_way -= 1

    def write_now(self, data: bytes) -> bool:
        """Whether `data` was taken, all of it and without waiting, behind all that was written before."""
        return not self._under_way and self._raw.write_now(data)

    def finish(self) -> None:
        """Nothing follows what was written, which arrives; not while a `write` is under way."""
        self._bridge.spawn(self._raw.finish)

    def reset(self) -> None:
        """Drop the stream in both directions, now; may be called again. A write that waits fails, even if the socket
        under it takes nothing more and does not say so.
        """
        self._bridge.spawn(self._raw.reset)
        if self._writing is not None and not self._writing.done():
            self._writing.set_exception(TransportError("the stream was reset"))


class Transport:
    """One libp2p host. `on_stream` gets what peers open, `on_peer` their first connection and their last.

    `on_path` is told of a peer that is reached by a relay alone from now on, or not any more.

    The first of `protocols` is the one whose streams live as long as a peer does.
    """

    def __init__(
        self,
        identity: Identity,
        protocols: Sequence[str],
        on_stream: Callable[[PeerId, str, Stream], None],
        on_peer: Callable[[PeerId, bool], None],
        limits: Limits = LIMITS,
        on_path: Callable[[PeerId], None] = lambda peer: None,
    ) -> None:
        self._bridge = Bridge(self._run, self._end, f"libp2p-{short(identity.peer)}")
        self.throttle, self.journal = Throttle(), Journal()
        self._host = TrioHost(
            identity,
            protocols,
            lambda *stream: self._bridge.tell(self._accept, *stream),
            lambda *change: self._bridge.tell(self._change, *change),
            lambda *step: self._bridge.tell(self.journal.note, *step),
            RelayAccounts(limits),
            self.throttle,
        )
        self._on_stream, self._on_peer, self._on_path = on_stream, on_peer, on_path
        self._connections: dict[PeerId, dict[object, Route]] = {}  # and how they go

    async def start(self, *listen: str) -> None:
        """Listen on these multiaddrs; LocalError if that is impossible on the first."""
        self._listen = listen
        await self._bridge.start()

    async def close(self) -> None:
        """Say good-bye to all peers, close every socket and end the thread."""
        self._bridge.post(self._host.stop)
        await self._bridge.join()

    async def dial(self, peer: PeerId, address: str, limit: float) -> Connection:
        """A new connection with `peer`, made within `limit` seconds."""
        with self._noted(peer, address):
            return await self._bridge.call(self._host.dial, peer, address, limit)

    async def name_at(self, address: str, limit: float) -> PeerId:
        """The peer that answers at an address which names none, within `limit` seconds."""
        return await self._bridge.call(self._host.name_at, address, limit)

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """A new stream over the connection that there is."""
        return Stream(self._bridge, await self._bridge.call(self._host.open_stream, peer, protocol))

    async def open_stream_on(self, connection: Connection, protocol: str) -> Stream:
        """A new stream that has `connection` for itself, and takes it along when it is reset."""
        return Stream(self._bridge, await self._bridge.call(self._host.open_stream_on, connection, protocol))

    async def reserve(self, relay: PeerId) -> Reservation:
        """Have a relay that we are connected with connect others with us; TransportError if it does not."""
        return await self._bridge.call(self._host.reserve, relay)

    def forget_relay(self, relay: PeerId) -> None:
        """Have it not any more."""
        self._bridge.post(self._host.forget_relay, relay)

    async def seen_by(self, peer: PeerId, at: str = "") -> tuple[str, int]:
        """Where a peer sees the port that we listen on, and that port; TransportError if it does not say.

        It is dialled `at` an address of its, or where we have dialled it before.
        """
        return await self._bridge.call(self._host.seen_by, peer, at)

    async def large_packets_pass(self, peer: PeerId) -> bool:
        """Whether large packets come to a peer that we have dialled; TransportError if that cannot be told."""
        return await self._bridge.call(self._host.large_packets_pass, peer)

    def meet_at(self, addresses: tuple[str, ...], is_symmetric: bool = False) -> None:
        """Others who dial us when we dial them can meet us there; without any: nowhere, or not known yet where."""
        self._bridge.post(self._host.meet_at, addresses, is_symmetric)

    def be_relay(self, addresses: tuple[str, ...]) -> None:
        """Connect others with each other, who dial us at these, within limits; without any, do so no more."""
        self._bridge.post(self._host.be_relay, addresses)

    @property
    def relay_accounts(self) -> RelayAccounts:
        """What we have done as a relay; to be looked at only."""
        return self._host.relay_accounts

    @property
    def usage(self) -> Usage:
        """How many connections there are now, and of how many peers anything is kept."""
        return self._host.usage

    async def disconnect(self, peer: PeerId, why: str) -> None:
        """Close all connections with `peer`, even if it answers no more; `why` is for people who miss them."""
        await self._bridge.call(self._host.disconnect, peer, why)

    def why_lost(self, peer: PeerId) -> str:
        """Why there is no connection with `peer` any more, for people to read."""
        lost = [step.words for step in self.journal.of(peer) if step.way is Way.LOST]
        return lost[-1] if lost else "nobody knows why"

    def addresses(self) -> tuple[str, ...]:
        """Where we listen (0.0.0.0 stays 0.0.0.0, :: stays ::), and where several peers say that they see us."""
        return self._host.addresses

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where the connections with `peer` lead."""
        return tuple(address for each in self._connections.get(peer, {}).values() for address in each.addresses)

    def came_to(self, peer: PeerId) -> tuple[str, ...]:
        """Where of ours `peer` has dialled us, alone and not while we dialled it."""
        routes = self._connections.get(peer, {}).values()
        return tuple(dict.fromkeys(each.came_to for each in routes if each.came_to))

    def link_report(self, peer: PeerId, gauge: Gauge, known: tuple[str, ...]) -> LinkReport:
        """How `peer` is reached, and what was tried; `known` are its addresses."""
        found = self._connections.get(peer, {}).items()
        lines = tuple(ConnectionInfo(route.addresses, self._host.is_ours(connection)) for connection, route in found)
        return LinkReport(peer, self.path(peer) if lines else None, lines, self.journal.of(peer), gauge, known)

    def path(self, peer: PeerId) -> str:
        """How the connections with `peer` go: the best path of shoal.protocol.base.paths."""
        return best_path(self._connections.get(peer, {}).values())

    def _run(self) -> None:
        self._host.run(self._listen, self._bridge.opened)

    def _accept(self, peer: PeerId, protocol: str, raw: RawStream) -> None:
        self._on_stream(peer, protocol, Stream(self._bridge, raw))

    def _change(self, peer: PeerId, connection: object, route: Route, up: bool) -> None:
        """Two peers that dial each other at once have two connections; only the first and the last matter."""
        connections = self._connections.setdefault(peer, {})
        before, was_relayed = bool(connections), self.path(peer) == RELAYED
        if up:
            connections[connection] = route
        else:
            connections.pop(connection, None)
            why = self._host.why_ended(connection)
            log.debug("a connection with %s ends, %d are left: %s", short(peer), len(connections), why)
        if before and connections and was_relayed != (self.path(peer) == RELAYED):
            self._on_path(peer)
        if not connections:
            del self._connections[peer]
        self._note_change(peer, connection, route.addresses, before, bool(connections))
        if before != bool(connections):
            self._on_peer(peer, up)

    def _note_change(self, peer: PeerId, connection: object, leads_to: tuple[str, ...], was: bool, is_up: bool) -> None:
        """That they came, and that nobody is there any more; what we dialled is noted by itself."""
        where = leads_to[0] if leads_to else ""
        if is_up and not was and not self._host.is_ours(connection):
            self.journal.note(peer, Step(time.time(), Way.CAME, where))
        elif was and not is_up:
            self.journal.note(peer, Step(time.time(), Way.LOST, where, words=self._host.why_ended(connection)))

    @contextmanager
    def _noted(self, peer: PeerId, address: str) -> Iterator[None]:
        """A dial, and what comes of it."""
        begin, code, words = time.time(), "failed", ""
        try:
            yield
            code = OK
        except TransportError as error:
            code, words = error.code, str(error)
            raise
        except asyncio.CancelledError:
            code = "overtaken"
            raise
        finally:
            way, now = Way.RELAY if is_relayed(address) else Way.DIAL, time.time()
            self.journal.note(peer, Step(now, way, address, code, words, now - begin))

    def _end(self, failure: Exception | None) -> None:
        if failure is not None and not isinstance(failure, LocalError):  # which `start` raises
            log.error("the libp2p host has failed", exc_info=failure)
        for peer in list(self._connections):
            del self._connections[peer]
            self._on_peer(peer, False)

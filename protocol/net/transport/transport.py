"""libp2p for asyncio: connect to peers, open and accept byte streams. The work is done in the trio thread by host.py.

Rules:
- Everything here belongs to the asyncio loop that called `start`; a call crosses to the trio thread and back.
- Failures of the network are TransportErrors. A cancelled call goes on in the other thread; resetting the stream stops
  it.
- A write returns when its bytes are on the connection, so the peer sets the pace. A short write that need not wait is
  done right here, as crossing to the other thread and back costs more than the write.
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

STEP = 1 << 17  # bytes: smaller allowances of a reader are not passed on

Connection = Any  # libp2p's, opaque here

log = logging.getLogger(__name__)


class Stream:
    """One byte stream with a peer, for one reader and one writer."""

    def __init__(self, bridge: Bridge, raw: RawStream) -> None:
        self._bridge = bridge
        self._raw = raw
        self._allowed = 0  # bytes since the stream was opened
        self._under_way = 0  # writes that may not have ended
        self._writing: asyncio.Future[None] | None = None  # the last write

    @property
    def is_open(self) -> bool:
        """Whether it can be written to; cheap, and False is final."""
        return self._raw.is_open

    @property
    def is_relayed(self) -> bool:
        """Whether it lies on a relayed connection."""
        return self._raw.is_relayed

    def listen(self, feed: Callable[[bytes], None], ended: Callable[[BaseException], None]) -> None:
        """Call `feed` with received bytes, as far as allowed; at the end, call `ended` once with the reason."""
        self._bridge.follow(ended, self._raw.pump, partial(self._bridge.tell, feed))

    def allow(self, upto: int) -> None:
        """Allow `upto` bytes in total since the stream began; they are pushed, as asking for each piece would cost a
        round trip between threads. So `upto` should be well ahead: steps below STEP are not passed on.
        """
        if upto - self._allowed >= STEP:
            self._bridge.post(self._raw.allow, upto - self._allowed)
            self._allowed = upto

    async def write(self, *parts: Buffer) -> None:
        """Write all parts to the connection, as fast as the peer reads."""
        self._under_way += 1  # stays so if we are cancelled, as the write goes on in the other thread
        self._writing = self._bridge.begin(self._raw.write, parts)
        await self._writing
        self._under_way -= 1

    def write_now(self, data: bytes) -> bool:
        """Write `data` without waiting, in order; False if that is impossible now, and then nothing was written."""
        return not self._under_way and self._raw.write_now(data)

    def finish(self) -> None:
        """End our direction; what was written still arrives. Not while a `write` is under way."""
        self._bridge.spawn(self._raw.finish)

    def reset(self) -> None:
        """End both directions at once; may be called again. A waiting write fails, even if the socket below it is
        stuck.
        """
        self._bridge.spawn(self._raw.reset)
        if self._writing is not None and not self._writing.done():
            self._writing.set_exception(TransportError("the stream was reset"))


class Transport:
    """A libp2p host for asyncio.

    `on_stream(peer, protocol, stream)` gets the streams that peers open. `on_peer(peer, is_up)` is told of a peer's
    first connection, and of the end of its last; `on_fewer(peer, why)` of the end of one of several. `on_path(peer)` is
    told when a peer begins or ceases to be reached only by a relay. Streams of the first of `protocols` last as long as
    the connection with the peer.
    """

    def __init__(
        self,
        identity: Identity,
        protocols: Sequence[str],
        on_stream: Callable[[PeerId, str, Stream], None],
        on_peer: Callable[[PeerId, bool], None],
        limits: Limits = LIMITS,
        on_path: Callable[[PeerId], None] = lambda peer: None,
        on_fewer: Callable[[PeerId, str], None] = lambda peer, why: None,
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
        self._on_stream, self._on_peer, self._on_path, self._on_fewer = on_stream, on_peer, on_path, on_fewer
        self._connections: dict[PeerId, dict[object, Route]] = {}

    async def start(self, *listen: str) -> None:
        """Listen on these multiaddrs; LocalError if that is impossible on the first."""
        self._listen = listen
        await self._bridge.start()

    async def close(self) -> None:
        """Say good-bye to all peers, close all sockets and end the thread."""
        self._bridge.post(self._host.stop)
        await self._bridge.join()

    async def dial(self, peer: PeerId, address: str, limit: float) -> Connection:
        """A new connection with `peer`, made within `limit` seconds."""
        with self._noted(peer, address):
            return await self._bridge.call(self._host.dial, peer, address, limit)

    async def name_at(self, address: str, limit: float) -> PeerId:
        """The peer that answers at an address without a PeerID, within `limit` seconds."""
        return await self._bridge.call(self._host.name_at, address, limit)

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """A new stream on the present connection."""
        return Stream(self._bridge, await self._bridge.call(self._host.open_stream, peer, protocol))

    async def open_stream_on(self, connection: Connection, protocol: str) -> Stream:
        """A new stream that has `connection` for itself; the connection is closed with it."""
        return Stream(self._bridge, await self._bridge.call(self._host.open_stream_on, connection, protocol))

    async def reserve(self, relay: PeerId) -> Reservation:
        """A reservation with a relay that we are directly connected with; TransportError if it gives none."""
        return await self._bridge.call(self._host.reserve, relay)

    def forget_relay(self, relay: PeerId) -> None:
        """Accept no more connections through this relay."""
        self._bridge.post(self._host.forget_relay, relay)

    async def seen_by(self, peer: PeerId, at: str = "") -> tuple[str, int]:
        """(where a peer sees our listening port, that port); TransportError if it does not say.

        The peer is dialled `at` that address, or by default where we have dialled it before.
        """
        return await self._bridge.call(self._host.seen_by, peer, at)

    async def large_packets_pass(self, peer: PeerId) -> bool:
        """Whether large packets reach a peer that we have dialled; TransportError if that cannot be determined."""
        return await self._bridge.call(self._host.large_packets_pass, peer)

    def meet_at(self, addresses: tuple[str, ...], is_symmetric: bool = False) -> None:
        """Set the addresses at which others can meet us in hole punching; none if there are none, or not known yet."""
        self._bridge.post(self._host.meet_at, addresses, is_symmetric)

    def be_relay(self, addresses: tuple[str, ...]) -> None:
        """Be a relay, within limits, that others dial at these addresses; without any, stop being one."""
        self._bridge.post(self._host.be_relay, addresses)

    @property
    def relay_accounts(self) -> RelayAccounts:
        """What others have of us as a relay; read only."""
        return self._host.relay_accounts

    @property
    def usage(self) -> Usage:
        """How many connections there are now, and of how many peers anything is kept."""
        return self._host.usage

    async def disconnect(self, peer: PeerId, why: str) -> None:
        """Close all connections with `peer`, even if it does not answer; `why` is shown to people."""
        await self._bridge.call(self._host.disconnect, peer, why)

    def why_lost(self, peer: PeerId) -> str:
        """Why the last connection with `peer` has ended, for people to read."""
        lost = [step.words for step in self.journal.of(peer) if step.way is Way.LOST]
        return lost[-1] if lost else "nobody knows why"

    def addresses(self) -> tuple[str, ...]:
        """Where we listen (0.0.0.0 and :: are not replaced), and where several peers report to see us."""
        return self._host.addresses

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """The other ends of the connections with `peer`."""
        return tuple(address for each in self._connections.get(peer, {}).values() for address in each.addresses)

    def came_to(self, peer: PeerId) -> tuple[str, ...]:
        """Our addresses that `peer` has dialled, without hole punching."""
        routes = self._connections.get(peer, {}).values()
        return tuple(dict.fromkeys(each.came_to for each in routes if each.came_to))

    def link_report(self, peer: PeerId, gauge: Gauge, known: tuple[str, ...]) -> LinkReport:
        """How `peer` is reached and what was tried; `known` are its known addresses."""
        found = self._connections.get(peer, {}).items()
        lines = tuple(ConnectionInfo(route.addresses, self._host.is_ours(connection)) for connection, route in found)
        return LinkReport(peer, self.path(peer) if lines else None, lines, self.journal.of(peer), gauge, known)

    def path(self, peer: PeerId) -> str:
        """The path to `peer`: the best one of its connections (protocol/base/paths.py)."""
        return best_path(self._connections.get(peer, {}).values())

    def _run(self) -> None:
        self._host.run(self._listen, self._bridge.opened)

    def _accept(self, peer: PeerId, protocol: str, raw: RawStream) -> None:
        self._on_stream(peer, protocol, Stream(self._bridge, raw))

    def _change(self, peer: PeerId, connection: object, route: Route, up: bool) -> None:
        """A connection has come or ended."""
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
        elif not up:
            self._on_fewer(peer, self._host.why_ended(connection))

    def _note_change(self, peer: PeerId, connection: object, leads_to: tuple[str, ...], was: bool, is_up: bool) -> None:
        """Note in the journal that a peer has connected, or that its last connection is lost; `_noted` notes dials."""
        where = leads_to[0] if leads_to else ""
        if is_up and not was and not self._host.is_ours(connection):
            self.journal.note(peer, Step(time.time(), Way.CAME, where))
        elif was and not is_up:
            self.journal.note(peer, Step(time.time(), Way.LOST, where, words=self._host.why_ended(connection)))

    @contextmanager
    def _noted(self, peer: PeerId, address: str) -> Iterator[None]:
        """Note in the journal what comes of a dial."""
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

"""libp2p's swarm with limits: what it accepts is bounded, and it does nothing on its own.

Rules:
- One host (IPv4 address, or IPv6 /64 network) may have MAX_FROM_HOST connections here, and open new ones at a bounded
  rate, so that it can neither take all places nor keep us busy with handshakes. libp2p closes handshakes that take too
  long; if there is no room for another, the oldest unfinished one is closed (inbound_limits.py).
- All limits shrink with the limit of open files, the last of which are reserved for our own files (descriptors.py).
- One peer may have MAX_FROM_PEER connections: two if both dialled at once, one for payloads in each direction, and some
  that died unnoticed. Beyond that the oldest is closed, as a peer that has lost all of its own needs a new one.
- Nothing is kept of a peer without a connection.
- An error on one stream or connection ends only that one: an uncaught exception here would end the whole swarm.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, cast

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, ISecureConn
from libp2p.crypto import ed25519, x25519
from libp2p.custom_types import StreamHandlerFn, TMuxerOptions, TProtocol
from libp2p.io.trio import TrioTCPStream
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise import transport as noise
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import Place, is_relayed, multiaddr
from shoal.protocol.base.paths import DIRECT, PUNCHED, RELAYED, Route
from shoal.protocol.net.libp2p.inbound_limits import InboundLimits, counted_host
from shoal.protocol.net.libp2p.muxer import MAX_STREAMS, Muxer
from shoal.protocol.net.libp2p.session import Noise, Session
from shoal.protocol.net.system.descriptors import is_reserved, limit, share
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.throttle import Throttle

MAX_CONNECTIONS = 1024
MAX_FROM_HOST = 256  # from one host; there may be many peers behind a router
MAX_WAITING = 256  # in their handshake, from all hosts together
OF_FILES, OF_FILES_HOST, OF_FILES_WAITING = 1 / 2, 1 / 4, 1 / 4  # the same as shares of the open files
MAX_FROM_PEER = 8
NEW_FROM_HOST = (128, 16.0)  # connections in a burst, and per second
MOST_AT_ONCE = 0xFFFF  # bytes: the longest message of the handshake
MAX_HOSTS = 4096  # hosts whose rate is remembered
YAMUX = TProtocol("/yamux/1.0.0")
CODES = {  # see journal.py
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "silent",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
}

log = logging.getLogger(__name__)

OnConnection = Callable[[PeerId, object, Route, bool], None]
"""on_connection(peer, connection, route, whether it is up)."""


def make_swarm(identity: Identity, on_connection: OnConnection, throttle: Throttle | None = None) -> BoundedSwarm:
    """A swarm that speaks TCP, only Noise and only yamux, and does nothing on its own."""
    keys = ed25519.create_new_key_pair(identity.seed)
    name = ID.from_pubkey(keys.public_key)
    peers = PeerStore(max_peers=4 * MAX_CONNECTIONS)  # at its limit it may forget our own keys first, so it is large
    peers.add_key_pair(name, keys)
    security = Noise(keys, noise_privkey=x25519.create_new_key_pair().private_key)
    security.throttle = throttle
    muxers: TMuxerOptions = {YAMUX: Muxer}
    upgrader = TransportUpgrader({noise.PROTOCOL_ID: security}, muxers)
    upgrader.muxer_multistream = _Muxers(muxers)
    most = share(OF_FILES, MAX_CONNECTIONS)
    # libp2p's own limit per peer would close the connection with the fewest streams, whichever that is
    config = ConnectionConfig(
        max_connections=most, high_watermark=most, low_watermark=most, min_connections=0, max_connections_per_peer=most
    )
    return BoundedSwarm(on_connection, name, peers, upgrader, [BoundedTcp()], RetryConfig(max_retries=0), config)


async def ask_name(swarm: Swarm, address: Multiaddr) -> PeerId:
    """The peer that answers at `address`, proven by a Noise handshake; the connection is closed after that."""
    raw = await BoundedTcp().dial(address)
    try:
        security = await swarm.upgrader.security_multistream.select_transport(raw, True)
        pattern = cast(noise.Transport, security).get_pattern()
        return PeerId(str((await pattern.handshake_outbound(raw, None)).get_remote_peer()))
    finally:
        await raw.close()


async def close_connections(connections: Sequence[INetConn], why: str) -> None:
    """Close connections: with a good-bye if the peer still reads, else by the socket. `why` is shown to people."""

    async def close(connection: INetConn) -> None:
        with suppress(Exception), trio.CancelScope(shield=True):  # libp2p would count a half-closed connection for ever
            await connection.close()

    async with trio.open_nursery() as nursery:
        for connection in connections:
            cast(Muxer, connection.muxed_conn).ends_because(why)
            nursery.start_soon(close, connection)


def transport_error(error: BaseException) -> TransportError:
    """The reason of a failed dial as a TransportError: the deepest cause that people know, not libp2p's wording."""
    words, code, cause = str(error) or type(error).__name__, "failed", error
    if isinstance(error, TransportError):
        code = error.code
    while True:
        if isinstance(cause, PeerIDMismatchesPubkey):
            return TransportError("somebody else answers there, who has another PeerID", "other-identity")
        if isinstance(cause, OSError) and cause.errno:
            words, code = os.strerror(cause.errno).lower(), CODES.get(cause.errno, "failed")
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
        if inner is None:
            return TransportError(words, code)
        cause = inner


class BoundedSwarm(Swarm):
    """libp2p's swarm with our limits.

    It has no resource manager, as the default one refuses connections when the process uses much memory.
    """

    def __init__(self, on_connection: OnConnection, *args: Any) -> None:
        super().__init__(*args)
        self._on_connection = on_connection
        self.punching: dict[ID, Sequence[Place]] = {}  # hole punching under way: the places that we dial
        self._inbound = InboundLimits(share(OF_FILES_WAITING, MAX_WAITING), share(OF_FILES_HOST, MAX_FROM_HOST))
        self._inbound_limiter.total_tokens += self._inbound.waiting  # handshakes take no place of connections
        self._new_from_host = Allowances[str](*NEW_FROM_HOST, MAX_HOSTS)
        self.auto_connector = _NoAutoConnector(self)

    @property
    def inbound(self) -> int:
        """Incoming connections that count against a limit, ours or libp2p's, those in their handshake included."""
        return max(len(self._inbound), self._inbound_limiter.borrowed_tokens)

    async def notify_connected(self, conn: INetConn) -> None:
        nursery = cast(trio.Nursery, self.background_nursery)
        nursery.start_soon(self._watch, conn, self._route_of(conn))
        surplus = self.connections.get(conn.muxed_conn.peer_id, [])[:-MAX_FROM_PEER]
        if surplus:
            nursery.start_soon(close_connections, surplus, f"there are more than {MAX_FROM_PEER} with this peer")
        await super().notify_connected(conn)

    async def _watch(self, conn: INetConn, route: Route) -> None:
        """Report a connection and its end, at once; libp2p reports the end 0.2 s later."""
        peer = PeerId(str(conn.muxed_conn.peer_id))
        self._on_connection(peer, conn, route, True)
        await cast(Muxer, conn.muxed_conn).event_closed.wait()
        self._on_connection(peer, conn, route, False)

    def _route_of(self, conn: INetConn) -> Route:
        """The route of a new connection; `punched` if hole punching is under way and it leads where we dial."""
        addresses = tuple(str(address) for address in conn.get_transport_addresses())
        if any(map(is_relayed, addresses)):
            return Route(RELAYED, addresses)
        goals = [multiaddr(*place) for place in self.punching.get(conn.muxed_conn.peer_id, ())]
        if any(each in goals for each in addresses):
            return Route(PUNCHED, addresses)
        return Route(DIRECT, addresses, _came_to(cast(Muxer, conn.muxed_conn)))

    async def notify_disconnected(self, conn: INetConn) -> None:
        await super().notify_disconnected(conn)
        peer = conn.muxed_conn.peer_id
        if peer not in self.connections and peer != self.self_id:
            with suppress(Exception):  # PeerStoreError: the peer is unknown there
                self.peerstore.clear_peerdata(peer)

    async def notify_opened_stream(self, stream: INetStream) -> None:
        """Reset a stream beyond MAX_STREAMS; one that the peer has dropped counts as long as it is served here."""
        await super().notify_opened_stream(stream)
        connection = cast(NetStream, stream).swarm_conn
        if connection is not None and len(connection.streams) > MAX_STREAMS:
            await _reset(stream)

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """Never: libp2p would dial here when a stream is opened, to addresses of its choice."""
        raise SwarmException("not connected")

    def set_stream_handler(self, stream_handler: StreamHandlerFn) -> None:
        """Wrap the handler: an exception in a negotiation (text that is not UTF-8) would end the whole swarm."""

        async def guarded(stream: INetStream) -> None:
            try:
                await stream_handler(stream)
            except Exception:  # concerns only this stream, which is reset
                log.debug("a stream's handler failed", exc_info=True)
                await _reset(stream)

        super().set_stream_handler(guarded)

    async def _do_handle_inbound_connection(self, stream: Any, maddr: Multiaddr, failure: Any) -> None:
        """Receive a connection until it ends. libp2p's waits until the swarm ends: closed ones would count for ever."""
        raw, host, handshake = BoundedRawConnection(stream, False), _host_at(stream), trio.CancelScope()
        number = None
        if not is_reserved(_number_of(stream)) and self._new_from_host.of(host).take(trio.current_time()):
            number = self._inbound.add(host, handshake.cancel)
        if number is not None:
            try:
                await self._receive(raw, maddr, handshake, number)
            finally:
                self._inbound.remove(number)
        await raw.close()

    async def _receive(
        self, raw: BoundedRawConnection, maddr: Multiaddr, handshake: trio.CancelScope, number: int
    ) -> None:
        """Return when the connection has ended, or its handshake has failed."""
        connection = None
        with handshake, suppress(Exception):
            connection = cast(Muxer, await self.upgrade_inbound_raw_conn(raw, maddr))
            self._inbound.finish_handshake(number)
        if connection is not None:
            await connection.event_closed.wait()


def _number_of(stream: Any) -> int:
    """The number of the socket's descriptor; negative if it is closed already."""
    return int(stream.stream.socket.fileno())


def _came_to(connection: Muxer) -> str:
    """Our own address, if the other end has dialled it; empty if we have dialled."""
    place = None if connection.is_initiator else connection.secured_conn.own_end
    return multiaddr(_plain(place[0]), place[1]) if place is not None else ""


def _host_at(stream: Any) -> str:
    """The host of the other end, as connections are counted; empty if it is gone. libp2p's look-up is for IPv4 only."""
    try:
        return counted_host(str(stream.stream.socket.getpeername()[0]))
    except (OSError, ValueError):
        return ""


def _plain(host: str) -> str:
    """An IP address without its zone; one of IPv4 that a socket of both versions shows as IPv6, as IPv4."""
    address = ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


async def _reset(stream: INetStream) -> None:
    with suppress(Exception):  # the connection is ending, and the stream with it
        await stream.reset()


class BoundedRawConnection(RawConnection):
    """A raw connection that reads at most MOST_AT_ONCE bytes: libp2p collects as many as a stranger announces."""

    async def read(self, n: int | None = None) -> bytes:
        if n is None or n > MOST_AT_ONCE:
            raise RawConnError(f"{n} bytes are announced at once")
        return await super().read(n)

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other end; libp2p's method is for IPv4 only."""
        if isinstance(self.stream, TrioTCPStream):
            with suppress(OSError):  # it is closed
                name, port, *_ = self.stream.stream.socket.getpeername()
                return _plain(name), port
        return super().get_remote_address()


class BoundedTcp(TCP):
    """libp2p's TCP transport, whose connections are `BoundedRawConnection`s."""

    async def dial(self, maddr: Multiaddr) -> RawConnection:
        made = cast(RawConnection, await super().dial(maddr))
        if isinstance(made.stream, TrioTCPStream) and is_reserved(_number_of(made.stream)):
            await made.close()
            raise TransportError(f"no more connections fit into {limit()} open files (`ulimit -n`)", "full")
        return BoundedRawConnection(made.stream, True)


class _Muxers(MuxerMultistream):
    """Makes a `Muxer`; libp2p's class would make its own yamux, whatever is registered under that name."""

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        return self._annotate_connection(Muxer(cast(Session, conn), peer_id), conn, protocol)


class _NoAutoConnector(AutoConnector):
    """Does nothing; libp2p's would dial every peer it has heard of until it has hundreds of connections."""

    async def maybe_connect(self) -> None:
        return

    def record_disconnect(self, peer_id: ID) -> None:
        """Nothing; libp2p's would remember every peer for ever."""

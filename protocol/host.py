"""The libp2p host: TCP, Noise and yamux under trio. The only file that knows trio and libp2p.

Rules:
- Everything here runs in the trio thread, but for the properties and addresses, which only look.
- Only Noise is offered: by default libp2p also accepts plaintext, where anybody can take any name.
- Connections are opened when we say so, never by libp2p itself. A stranger's bad stream ends that stream only.
- A write is never cancelled: half a Noise message would cost all streams of its connection.
- What libp2p raises goes through; the bridge makes it a TransportError.
- What had to be mended in libp2p 0.8.1 is said where it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto import ed25519, x25519
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise import transport as noise
from libp2p.stream_muxer.yamux import yamux
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from shoal.protocol.errors import LocalError, TransportError
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId, short

MAX_CONNECTIONS = 1024
MAX_STREAMS = 64  # of one connection, both directions
MAX_UNREAD = 48 << 20  # of one connection: libp2p does not hold a peer to the windows that it was granted
NEGOTIATE_LIMIT = 10  # seconds until a new stream must be agreed on
CLOSE_TIMEOUT = 0.5  # for the good-byes of one connection
WINDOW_POLLS = (0.001, 0.05)  # shortest and longest wait between two looks at a closed window
SLAB = 65_535 - 16 - 12  # Noise message less tag and yamux header: one yamux frame is one Noise message
READ_SIZE = 1 << 16

Buffer = bytes | memoryview
OnConnection = Callable[[PeerId, object, bool], None]  # (peer, connection, whether it is up)


class RawStream:
    """One libp2p stream, for one reader and one writer."""

    def __init__(self, raw: INetStream, own_connection: bool = False) -> None:
        self._raw = cast(NetStream, raw)
        self._own_connection = own_connection
        self._muxed = cast(YamuxStream, self._raw.muxed_stream)
        self._released = trio.Event()

    @property
    def is_open(self) -> bool:
        ended = self._muxed.closed or self._muxed.send_closed or self._muxed.conn.event_shutting_down.is_set()
        return not ended

    async def read(self, wanted: int) -> bytearray:
        """At least `wanted` bytes."""
        data = bytearray()
        while len(data) < wanted:
            data += await self._muxed.read(max(wanted - len(data), READ_SIZE))
        return data

    async def write(self, parts: Sequence[Buffer]) -> None:
        """All parts, at the pace of the peer's windows."""
        for part in parts:
            view = memoryview(part)
            while view:
                size = min(SLAB, await self._window())
                await self._muxed.write(cast(bytes, view[:size]))
                view = view[size:]

    async def close(self) -> None:
        await self._raw.close()
        self._released.set()

    async def reset(self) -> None:
        with suppress(Exception):
            await self._raw.reset()
        self._released.set()
        if self._own_connection and self._raw.swarm_conn is not None:
            await _close_connections([self._raw.swarm_conn])

    async def wait_released(self) -> None:
        """Return when the stream was closed or reset here, or its connection ended."""
        async with trio.open_nursery() as nursery:
            for event in (self._released, self._muxed.conn.event_closed):
                nursery.start_soon(_cancel_after, nursery.cancel_scope, event)

    async def _window(self) -> int:
        """How much the peer takes now. libp2p's own wait gives up after 5 s; a peer may be paused longer."""
        pause, longest = WINDOW_POLLS
        while self._muxed.send_window <= 0:
            if not self.is_open:
                raise TransportError("the stream ended")
            await trio.sleep(pause)
            pause = min(2 * pause, longest)
        return self._muxed.send_window


class TrioHost:
    """One libp2p host. It says which streams peers open and which connections come and go."""

    def __init__(
        self,
        identity: Identity,
        protocols: Sequence[str],
        on_stream: Callable[[PeerId, str, RawStream], None],
        on_connection: OnConnection,
    ) -> None:
        self._identity, self._protocols = identity, protocols
        self._on_stream, self._on_connection = on_stream, on_connection
        self.addresses: tuple[str, ...] = ()  # as bound, and as several peers say that they see us

    def run(self, listen: str, opened: Callable[..., None]) -> None:
        """Block until `stop`; `opened(run_sync_soon, start_soon)` is called once we listen."""
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)  # it would print strangers' mistakes to stderr
        trio.run(self._main, listen, opened)

    def stop(self) -> None:
        self._stopping.set()

    async def dial(self, peer: PeerId, address: str, limit: float) -> INetConn:
        """A new connection with the peer, even if there is one, made within `limit` seconds."""
        with trio.move_on_after(limit):
            return await self._swarm.dial_addr(Multiaddr(address), ID.from_string(peer))
        raise TransportError(f"no answer in {limit:g} s")

    async def open_stream(self, peer: PeerId, protocol: str) -> RawStream:
        """A stream on the oldest connection with the peer; younger ones may have been made for bulk."""
        for connection in self._swarm.get_connections(ID.from_string(peer)):
            if not connection.is_closed:
                return RawStream(await self._negotiate(connection, protocol))
        raise TransportError(f"not connected with {short(peer)}")

    async def open_stream_on(self, connection: INetConn, protocol: str) -> RawStream:
        """A stream that has a connection for itself, and takes it along when it ends."""
        return RawStream(await self._negotiate(connection, protocol), own_connection=True)

    async def disconnect(self, peer: PeerId) -> None:
        await _close_connections(self._swarm.get_connections(ID.from_string(peer)))

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        connections = self._swarm.get_connections(ID.from_string(peer))
        return tuple(str(address) for each in connections for address in each.get_transport_addresses())

    async def _main(self, listen: str, opened: Callable[..., None]) -> None:
        self._stopping = trio.Event()
        self._swarm = _make_swarm(self._identity, self._on_connection)
        self._host = BasicHost(self._swarm)
        for protocol in self._protocols:
            self._host.set_stream_handler(TProtocol(protocol), partial(self._serve, protocol))
        async with self._host.run([Multiaddr(listen)]), trio.open_nursery() as nursery:
            try:
                if self._swarm.listeners:
                    self._note_addresses()
                    nursery.start_soon(self._look_after)
                    opened(trio.lowlevel.current_trio_token().run_sync_soon, nursery.start_soon)
                    await self._stopping.wait()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * CLOSE_TIMEOUT):
                    await _close_connections(self._swarm.get_connections())
                    await self._host.close()  # leaving host.run() without it leaks sockets
                nursery.cancel_scope.cancel()
        if not self._stopping.is_set():
            raise LocalError(f"cannot listen on {listen}")

    async def _serve(self, protocol: str, raw: INetStream) -> None:
        stream = RawStream(raw)
        self._on_stream(PeerId(str(raw.muxed_conn.peer_id)), protocol, stream)
        await stream.wait_released()  # libp2p forgets a stream as soon as its handler returns

    async def _negotiate(self, connection: INetConn, protocol: str) -> INetStream:
        stream = await connection.new_stream()
        try:
            lines, client = MultiselectCommunicator(stream), self._host.multiselect_client
            await client.select_one_of([TProtocol(protocol)], lines, NEGOTIATE_LIMIT)
        except Exception:
            await stream.reset()
            raise
        return stream

    async def _look_after(self) -> None:
        """Keep our addresses; cut off who sends more than its windows allow: libp2p logs it, and buffers."""
        while True:
            await trio.sleep(1)
            self._note_addresses()
            for connection in self._swarm.get_connections():
                unread = sum(len(each) for each in cast(Yamux, connection.muxed_conn).stream_buffers.values())
                if unread > MAX_UNREAD:
                    await _close_connections([connection])

    def _note_addresses(self) -> None:
        self.addresses = tuple(str(each).partition("/p2p/")[0] for each in self._host.get_addrs())


# -- libp2p, mended -----------------------------------------------------------------------------------------


def _make_swarm(identity: Identity, on_connection: OnConnection) -> Swarm:
    """libp2p's connection keeper: TCP, Noise alone, yamux alone, and nothing that acts on its own."""
    keys = ed25519.create_new_key_pair(identity.seed)
    name = ID.from_pubkey(keys.public_key)
    peers = PeerStore()
    peers.add_key_pair(name, keys)
    security = noise.Transport(keys, noise_privkey=x25519.create_new_key_pair().private_key)
    upgrader = TransportUpgrader({noise.PROTOCOL_ID: security}, {TProtocol(yamux.PROTOCOL_ID): Yamux})
    most = MAX_CONNECTIONS
    config = ConnectionConfig(max_connections=most, high_watermark=most, min_connections=0)
    return _Swarm(on_connection, name, peers, upgrader, [TCP()], RetryConfig(max_retries=0), config)


class _Swarm(Swarm):
    """Without a resource manager: the default one refuses connections when the process uses much memory."""

    def __init__(self, on_connection: OnConnection, *args: Any) -> None:
        super().__init__(*args)
        self._on_connection = on_connection
        self.auto_connector = _NoAutoConnector(self)

    async def notify_connected(self, conn: INetConn) -> None:
        cast(trio.Nursery, self.background_nursery).start_soon(self._watch, conn)
        await super().notify_connected(conn)

    async def _watch(self, conn: INetConn) -> None:
        """Tell of the end of a connection as it comes; libp2p does so 0.2 s later."""
        peer = PeerId(str(conn.muxed_conn.peer_id))
        self._on_connection(peer, conn, True)
        await cast(Yamux, conn.muxed_conn).event_closed.wait()
        self._on_connection(peer, conn, False)

    async def notify_opened_stream(self, stream: INetStream) -> None:
        await super().notify_opened_stream(stream)
        connection = cast(NetStream, stream).swarm_conn
        if connection is not None and len(connection.streams) > MAX_STREAMS:
            await stream.reset()

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """Opening a stream would dial here, to addresses of libp2p's choice."""
        raise SwarmException("not connected")

    def set_stream_handler(self, stream_handler: StreamHandlerFn) -> None:
        """An exception in a stream's negotiation (text that is not UTF-8) would end the whole swarm."""

        async def guarded(stream: INetStream) -> None:
            try:
                await stream_handler(stream)
            except Exception:
                await stream.reset()

        super().set_stream_handler(guarded)

    async def _do_handle_inbound_connection(self, stream: Any, maddr: Multiaddr, failure: Any) -> None:
        """The original waits for the swarm's end: closed connections count against its limit for ever."""
        raw = RawConnection(stream, False)
        with suppress(Exception):
            connection = cast(Yamux, await self.upgrade_inbound_raw_conn(raw, maddr))
            await connection.event_closed.wait()
        await raw.close()


class _NoAutoConnector(AutoConnector):
    """libp2p would dial every peer it ever heard of until it has hundreds of connections."""

    async def maybe_connect(self) -> None:
        return


async def _close_connections(connections: Sequence[INetConn]) -> None:
    """In good order if the peer still reads, by the socket if not."""

    async def close(connection: INetConn) -> None:
        with trio.move_on_after(CLOSE_TIMEOUT):
            await connection.close()
        with suppress(Exception):
            await cast(Yamux, connection.muxed_conn).secured_conn.close()

    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(close, connection)


async def _cancel_after(scope: trio.CancelScope, event: trio.Event) -> None:
    await event.wait()
    scope.cancel()

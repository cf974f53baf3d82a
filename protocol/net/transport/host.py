"""The libp2p host: byte streams over TCP, Noise and yamux, under trio.

Rules:
- Everything here runs in the trio thread, but for the properties and `addresses`, which only read, and `write_now`.
- Only Noise is offered: by default libp2p also accepts plaintext, where anybody can claim any PeerID.
- Connections are opened only when we ask for them, never by libp2p itself. A bad stream ends only that stream.
- Exceptions of libp2p pass through; the bridge turns them into TransportErrors.
- Workarounds for libp2p 0.8.1 are explained where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast
from weakref import WeakValueDictionary

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify import identify
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import ProtocolNotSupportedError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from multiaddr import Multiaddr

from shoal.protocol.base.errors import NOT_SPOKEN, LocalError, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import is_relayed, place_of, relay_of
from shoal.protocol.net.circuit.accounts import RelayAccounts
from shoal.protocol.net.circuit.client import Client
from shoal.protocol.net.circuit.meeting import side_of
from shoal.protocol.net.circuit.messages import HOP, STOP
from shoal.protocol.net.circuit.probes import large_packets_pass, seen_by
from shoal.protocol.net.circuit.punch import DCUTR, OnStep, Puncher, direct_connection
from shoal.protocol.net.circuit.relay import Relay
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.libp2p.muxer import Muxer, goes_by_a_relay
from shoal.protocol.net.libp2p.raw_stream import RawStream
from shoal.protocol.net.libp2p.swarm import OnConnection, ask_name, close_connections, make_swarm, transport_error
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.throttle import Throttle
from shoal.protocol.net.system.version import agent

MAX_UNREAD_IN_ALL = 2 << 30  # bytes received and not read, on all connections together
NEGOTIATE_LIMIT = 10  # seconds for the negotiation of a new stream
CLOSE_LIMIT = 1.0  # seconds to say good-bye to all peers and close libp2p

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the host keeps now; all of it is bounded, and ends with the connections that it is for."""

    connections: int
    inbound: int  # connections that others have made, those in their handshake included
    known_peers: int  # others whose keys or addresses libp2p holds


class TrioHost:
    """A libp2p host, which reports the streams that peers open and the connections that come and go.

    Streams of the first of `protocols` last as long as the connection with the peer.
    """

    def __init__(
        self,
        identity: Identity,
        protocols: Sequence[str],
        on_stream: Callable[[PeerId, str, RawStream], None],
        on_connection: OnConnection,
        on_step: OnStep,
        accounts: RelayAccounts,
        throttle: Throttle,
    ) -> None:
        self._identity, self._protocols = identity, protocols
        self._on_stream, self._on_connection = on_stream, on_connection
        self._in_use = WeakValueDictionary[PeerId, INetConn]()  # of the newest stream of the first protocol
        self._on_step = on_step  # is told what was tried here (journal.py)
        self.relay_accounts = accounts  # what this node does for others as a relay
        self.throttle = throttle  # the owner's rate limits
        self.addresses: tuple[str, ...] = ()  # where we listen, and where several peers report to see us

    def run(self, listen: Sequence[str], opened: Callable[..., None]) -> None:
        """Block until `stop`; call `opened(run_sync_soon, start_soon)` once we listen at least on the first address."""
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)  # else it logs strangers' mistakes to stderr
        trio.run(self._main, listen, opened)

    def stop(self) -> None:
        self._stopping.set()

    async def dial(self, peer: PeerId, address: str, limit: float) -> INetConn:
        """A new connection with the peer, even if there is one already, made within `limit` seconds."""
        name = ID.from_string(peer)
        if is_relayed(address):
            return await _within(limit, lambda: self._dial_by_relay(address, name))
        return await _within(limit, lambda: self._swarm.dial_addr(Multiaddr(address), name))

    async def _dial_by_relay(self, address: str, target: ID) -> INetConn:
        """A connection through a relay, over the present connection with that relay or a new one."""
        plain, name = relay_of(address)
        if not name:
            raise TransportError(f"the address {address} does not name its relay")
        relay = ID.from_string(name)
        connection = direct_connection(self._swarm, relay) or await self._swarm.dial_addr(Multiaddr(plain), relay)
        return await self._client.dial(connection, place_of(address), target)

    async def reserve(self, relay: PeerId) -> Reservation:
        """A reservation with a relay that we are directly connected with: it connects others with us."""
        return await self._client.reserve(self._direct(relay))

    def forget_relay(self, relay: PeerId) -> None:
        """Accept no more connections through this relay."""
        self._client.forget(relay)

    async def seen_by(self, peer: PeerId, at: str) -> tuple[str, int]:
        """Where the peer, dialled `at` an address or at the one in use, sees our listening port; and that port."""
        at = at or str(self._direct(peer).muxed_conn.get_transport_addresses()[0])
        return await seen_by(self._swarm, self._negotiate, ID.from_string(peer), at)

    async def large_packets_pass(self, peer: PeerId) -> bool:
        """Whether large packets reach a peer that we have dialled; TransportError if that cannot be determined."""
        return await large_packets_pass(self._swarm, self._negotiate, self._direct(peer))

    def _direct(self, peer: PeerId) -> INetConn:
        connection = direct_connection(self._swarm, ID.from_string(peer))
        if connection is None:
            raise TransportError(f"not connected with {short(peer)} without a relay")
        return connection

    def meet_at(self, addresses: tuple[str, ...], is_symmetric: bool) -> None:
        """Set the addresses at which others can meet us in hole punching."""
        self._puncher.own = side_of(addresses, is_symmetric)

    def be_relay(self, addresses: tuple[str, ...]) -> None:
        """Be a relay that others dial at these addresses; without any, stop being one."""
        self._relay.addresses = addresses

    async def name_at(self, address: str, limit: float) -> PeerId:
        """The peer that answers at an address, within `limit` seconds; TransportError if it goes by a relay."""
        if is_relayed(address):
            raise TransportError(f"{address} does not say whom the relay is to call")
        return await _within(limit, lambda: ask_name(self._swarm, Multiaddr(address)))

    async def open_stream(self, peer: PeerId, protocol: str) -> RawStream:
        """A stream on the connection that the peer uses for control, else on the oldest, as newer ones may be for bulk.

        A relayed connection is used only if there is no other.
        """
        connections = [each for each in self._swarm.get_connections(ID.from_string(peer)) if not each.is_closed]
        if not connections:
            raise TransportError(f"not connected with {short(peer)}")
        direct = [each for each in connections if not goes_by_a_relay(each)] or connections
        in_use = self._in_use.get(peer)
        connection = in_use if in_use in direct else direct[0]
        try:
            return RawStream(await self._negotiate(connection, protocol), throttle=self.throttle)
        except TransportError as error:
            if (
                error.code == "silent" and len(connections) > 1
            ):  # close it, so that the next attempt takes another connection
                await close_connections([connection], str(error))
            raise

    async def open_stream_on(self, connection: INetConn, protocol: str) -> RawStream:
        """A stream that has `connection` for itself; the connection is closed with it."""
        return RawStream(await self._negotiate(connection, protocol), own_connection=True, throttle=self.throttle)

    @property
    def usage(self) -> Usage:
        """How much is kept for peers; from any thread."""
        known = len(self._swarm.peerstore.peer_ids()) - 1  # without ourselves
        return Usage(len(self._swarm.get_connections()), self._swarm.inbound, known)

    def is_ours(self, connection: object) -> bool:
        """Whether we have dialled a connection; from any thread."""
        return cast(Muxer, cast(INetConn, connection).muxed_conn).is_initiator

    def why_ended(self, connection: object) -> str:
        """Why a connection has ended, for people to read; from any thread."""
        return cast(Muxer, cast(INetConn, connection).muxed_conn).why

    async def disconnect(self, peer: PeerId, why: str) -> None:
        await close_connections(self._swarm.get_connections(ID.from_string(peer)), why)

    async def _main(self, listen: Sequence[str], opened: Callable[..., None]) -> None:
        self._stopping = trio.Event()
        self._swarm = make_swarm(self._identity, self._on_connection, self.throttle)
        identify.AGENT_VERSION = agent()  # libp2p has no other way to set it
        self._host = BasicHost(self._swarm, negotiate_timeout=NEGOTIATE_LIMIT)
        for protocol in self._protocols:
            self._host.set_stream_handler(TProtocol(protocol), partial(self._serve, protocol))
        self._puncher = Puncher(self._swarm, self._negotiate, self._on_step)
        self._client = Client(self._swarm, self._negotiate, self._puncher)
        self._relay = Relay(self.relay_accounts, self._swarm.get_connections, self._negotiate, self.throttle)
        handlers = {HOP: self._relay.serve, STOP: self._client.accept, DCUTR: self._puncher.serve}
        for protocol, handler in handlers.items():
            self._host.set_stream_handler(TProtocol(protocol), handler)
        async with self._host.run([Multiaddr(each) for each in listen]), trio.open_nursery() as nursery:
            try:
                if listen[0] in self._swarm.listeners:
                    self._note_addresses()
                    nursery.start_soon(self._look_after)
                    opened(trio.lowlevel.current_trio_token().run_sync_soon, nursery.start_soon)
                    await self._stopping.wait()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_LIMIT):
                    await close_connections(self._swarm.get_connections(), "this node ends")
                    await self._host.close()  # without this, leaving host.run() leaks sockets
                nursery.cancel_scope.cancel()
        if not self._stopping.is_set():
            raise LocalError(f"cannot listen on {listen[0]}", code="cannot-listen")

    async def _serve(self, protocol: str, raw: INetStream) -> None:
        peer, connection = PeerId(str(raw.muxed_conn.peer_id)), cast(NetStream, raw).swarm_conn
        stream = RawStream(raw, throttle=self.throttle)
        if protocol == self._protocols[0] and connection is not None:
            self._in_use[peer] = connection
        self._on_stream(peer, protocol, stream)
        await stream.wait_released()  # libp2p forgets a stream as soon as its handler returns

    async def _negotiate(self, connection: INetConn, protocol: str) -> INetStream:
        stream = await connection.new_stream()
        try:
            lines, client = MultiselectCommunicator(stream), self._host.multiselect_client
            with trio.fail_after(NEGOTIATE_LIMIT):
                await client.handshake(lines)
                await client.try_select(lines, TProtocol(protocol))
        except ProtocolNotSupportedError as error:
            await stream.reset()
            raise TransportError(f"it does not speak {protocol}", NOT_SPOKEN) from error
        except trio.TooSlowError as error:
            await stream.reset()
            raise TransportError(f"no answer to a new stream in {NEGOTIATE_LIMIT} s", "silent") from error
        except BaseException:  # re-raised below: the half-open stream has no owner that would reset it
            with trio.CancelScope(shield=True):
                await stream.reset()
            raise
        return stream

    async def _look_after(self) -> None:
        """Keep `addresses` current; if too much is unread in total, close the connections with most of it."""
        while True:
            await trio.sleep(1)
            self._note_addresses()
            by_size = sorted(self._swarm.get_connections(), key=_unread)
            while sum(map(_unread, by_size)) > MAX_UNREAD_IN_ALL:
                await close_connections([by_size.pop()], "too much that came by it waited to be read")

    def _note_addresses(self) -> None:
        with suppress(Exception):  # addresses that strangers report are among them, and may be anything
            self.addresses = tuple(place_of(str(each)) for each in self._host.get_addrs())


async def _within(limit: float, connect: Callable[[], Awaitable[T]]) -> T:
    """The result of `connect`; TransportError in plain words if it fails or takes too long."""
    with trio.move_on_after(limit):
        try:
            return await connect()
        except Exception as error:  # libp2p raises many types
            raise transport_error(error) from error
    raise TransportError(f"no answer in {limit:g} s", "silent")


def _unread(connection: INetConn) -> int:
    return cast(Muxer, connection.muxed_conn).unread

"""The two ends of a connection through a relay. Belongs to the trio thread.

Rules:
- A connection through a relay is like any other: Noise from end to end, and yamux in it. The relay sees which peers
  are connected and how much they send, but no content.
- Only a relay with which we hold a reservation may connect others with us.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import cast

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerInfo
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import CIRCUIT, host_and_port, is_relayed, place_of, shortlist
from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.circuit.messages import HOP, drop, read_message, status_of, stop_answer, write_message
from shoal.protocol.net.circuit.punch import Puncher
from shoal.protocol.net.circuit.relay import ASK_LIMIT, OpenStream
from shoal.protocol.net.circuit.reservations import Reservation
from shoal.protocol.net.libp2p.muxer import MuxedStream, Muxer
from shoal.protocol.net.libp2p.swarm import BoundedRawConnection, close_connections
from shoal.protocol.net.measure.journal import Way

MAX_ADDRESSES = 8  # of a relay that are kept
MAX_READ = 64  # addresses of a relay that are read; some are of protocols that we do not speak
LINGER, LONGEST_LINGER = 2.0, 30.0  # seconds that a circuit stays after a direct connection has replaced it
SHORTEST, LONGEST = 60.0, 7200.0  # seconds that a reservation lasts, at least and at most
CALLS = (32, 1.0)  # incoming connections that one relay may bring, in a burst and per second
MAX_RELAYS = 64
PAUSES = (3.0, 10.0, 30.0, 120.0)  # seconds between attempts at a direct connection that fail
EARLY = (0.1, 0.2, 0.4, 0.8, 1.6)  # the same while one of the two does not know its outside address yet

log = logging.getLogger(__name__)


class Client:
    """Obtains reservations, and makes and accepts connections through relays."""

    def __init__(self, swarm: Swarm, open_stream: OpenStream, puncher: Puncher) -> None:
        self._swarm, self._open_stream, self._puncher = swarm, open_stream, puncher
        self._relays: set[PeerId] = set()
        self._calls = Allowances[PeerId](*CALLS, MAX_RELAYS)

    async def reserve(self, connection: INetConn) -> Reservation:
        """A reservation with the relay at the other end of `connection`; TransportError if it gives none."""
        relay = PeerId(str(connection.muxed_conn.peer_id))
        stream = await self._open_stream(connection, HOP)
        try:
            answer = await _ask(stream, HopMessage(type=HopMessage.RESERVE), relay)
        finally:
            await drop(stream)
        lasts = min(float(answer.reservation.expire) - time.time(), LONGEST)
        if lasts < SHORTEST:
            raise TransportError(f"the relay {short(relay)} promises nothing that lasts, or our clocks are far apart")
        plain = shortlist(_readable(answer.reservation.addrs[:MAX_READ]), MAX_ADDRESSES)
        self._relays.add(relay)
        return Reservation(relay, time.monotonic() + lasts, tuple(f"{each}/p2p/{relay}{CIRCUIT}" for each in plain))

    def forget(self, relay: PeerId) -> None:
        """Accept no more connections through this relay."""
        self._relays.discard(relay)

    async def dial(self, connection: INetConn, address: str, target: ID) -> INetConn:
        """A connection with `target` through the relay at the other end of `connection`, whose address is given."""
        relay = PeerId(str(connection.muxed_conn.peer_id))
        stream = await self._open_stream(connection, HOP)
        try:
            await _ask(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerInfo(id=target.to_bytes())), relay)
            return await self._swarm.upgrade_outbound_raw_conn(_raw(stream, True, address), target)
        except BaseException:  # re-raised: the stream has no connection that would close it
            await drop(stream)
            raise

    async def accept(self, stream: INetStream) -> None:
        """Serve a relay that connects a peer with us; returns when that connection has ended."""
        relay = PeerId(str(stream.muxed_conn.peer_id))
        try:
            with trio.fail_after(ASK_LIMIT):
                question = await read_message(stream, StopMessage)
                is_asked = relay in self._relays and question.type == StopMessage.CONNECT
                is_known = is_asked and self._calls.of(relay).take(trio.current_time())
                status = Status.OK if is_known else Status.PERMISSION_DENIED
                await write_message(stream, stop_answer(status))
            if is_known:
                where = [str(each) for each in stream.muxed_conn.get_transport_addresses()]
                address = f"{where[0]}/p2p/{relay}{CIRCUIT}"
                raw = _raw(stream, False, address)
                connection = cast(Muxer, await self._swarm.upgrade_inbound_raw_conn(raw, Multiaddr(address)))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._improve, connection)
                    await connection.event_closed.wait()
                    nursery.cancel_scope.cancel()
        finally:
            await drop(stream)

    async def _improve(self, relayed: Muxer) -> None:
        """Replace a relayed connection by a direct one, now or later; what is on its way on the old one still arrives.

        The next attempt follows after a pause, or at once when we learn our outside address.
        """
        early, later = iter(EARLY), iter(PAUSES)
        while (connection := self._connection_on(relayed)) is not None:
            moved, begin = self._puncher.moved, time.time()
            failure = await self._failure_to_meet(connection)
            if failure is None:
                with trio.move_on_after(LONGEST_LINGER):
                    await _idle(relayed)
                await close_connections([connection], "a direct connection has taken its place")
                return
            is_early = isinstance(failure, TransportError) and failure.code == "no-place-yet"
            pause = next(chain(early, later) if is_early else later, math.inf)
            if not isinstance(failure, Refused):
                again = 0.0 if math.isinf(pause) else pause
                self._puncher.note(relayed, Way.MEET, begin, failure, pause=again)
            with trio.move_on_after(pause):
                await moved.wait()

    def _connection_on(self, relayed: Muxer) -> INetConn | None:
        connections = self._swarm.get_connections(relayed.peer_id)
        return next((each for each in connections if each.muxed_conn is relayed), None)

    async def _failure_to_meet(self, relayed: INetConn) -> Exception | None:
        try:
            await self._puncher.begin(relayed)
        except Exception as error:  # libp2p raises many types; the relayed connection is still there
            log.debug("no direct connection with %s yet: %s", relayed.muxed_conn.peer_id, error)
            return error
        return None


class _Carried(ReadWriteCloser):
    """A stream of one connection as the byte transport of another."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        self._muxed = cast(MuxedStream, cast(NetStream, stream).muxed_stream)

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._muxed.take_or_end(n or 1)
        except MuxedStreamError as error:
            raise ConnectionClosedError(f"the way by the relay has ended: {error}") from error

    async def write(self, data: bytes) -> None:
        try:
            await self._muxed.write(data)
        except MuxedStreamError as error:
            raise ConnectionClosedError(str(error)) from error

    async def close(self) -> None:
        await drop(self._stream)

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._stream.get_remote_address()


async def _idle(connection: Muxer) -> None:
    """Return when both ends have had time to move, and have ended all streams."""
    await trio.sleep(LINGER)
    while connection.has_streams:
        await trio.sleep(LINGER)


def _raw(stream: INetStream, is_initiator: bool, address: str) -> BoundedRawConnection:
    return BoundedRawConnection(_Carried(stream), is_initiator, ConnectionType.RELAYED, [Multiaddr(address)])


async def _ask(stream: INetStream, question: HopMessage, relay: PeerId) -> HopMessage:
    with trio.move_on_after(ASK_LIMIT):
        try:
            await write_message(stream, question)
            answer = await read_message(stream, HopMessage)
            if (status := status_of(answer)) is Status.OK:
                return answer
            raise Refused(status)
        except Refused as refusal:
            raise TransportError(f"the relay {short(relay)} says: {refusal}") from refusal
    raise TransportError(f"the relay {short(relay)} gives no answer in {ASK_LIMIT:g} s", "silent")


def _readable(addresses: Iterable[bytes]) -> Iterator[str]:
    for each in addresses:
        with suppress(ValueError):
            address = str(Multiaddr(each))
            if not is_relayed(address) and host_and_port(address) is not None:
                yield place_of(address)

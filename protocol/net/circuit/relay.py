"""The relay's side: gives reservations, and forwards circuits from one stream to another. Belongs to the trio thread.

Rules:
- Peers that are themselves connected through a relay are not served.
- A holder of a reservation is reached over its existing connections; none is made for that.
- Each circuit has two tasks, one for each direction, and ends only its own two streams. It holds the windows of two
  streams in memory, which do not grow here: with a round trip of 100 ms they allow the rate that a peer may have.
- accounts.py decides how much a circuit may carry, how fast and how long, and which one is closed to make room for
  another; our owner's rate limits hold for all circuits, too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import cast

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, Reservation, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerInfo
from multiaddr import Multiaddr

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.accounts import Circuit, Refused, RelayAccounts, Status
from shoal.protocol.net.circuit.messages import STOP, drop, hop_answer, read_message, status_of, write_message
from shoal.protocol.net.libp2p.inbound_limits import counted_host
from shoal.protocol.net.libp2p.muxer import FIRST_WINDOW, FRAME, MuxedStream, goes_by_a_relay
from shoal.protocol.net.system.throttle import StreamPace, Throttle

LONGEST_ID = 64  # bytes of a PeerID
TARGET_LIMIT = 2.0  # seconds to ask the target on one connection, if it has others
ASK_LIMIT = 10.0  # seconds for a request, and to ask the target on all its connections

OpenStream = Callable[[INetConn, str], Awaitable[INetStream]]


class Relay:
    """Serves `hop` streams, as long as `addresses` names addresses of ours that others can dial."""

    def __init__(
        self,
        accounts: RelayAccounts,
        connections: Callable[[ID], Sequence[INetConn]],
        open_stream: OpenStream,
        throttle: Throttle,
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self._accounts, self._connections, self._open_stream = accounts, connections, open_stream
        self._throttle = throttle

    async def serve(self, stream: INetStream) -> None:
        """Serve one stream that a peer has opened, to its end."""
        try:
            with trio.fail_after(ASK_LIMIT):
                question = await read_message(stream, HopMessage)
            if question.type == HopMessage.RESERVE:
                await self._reserve(stream)
            elif question.type == HopMessage.CONNECT and len(question.peer.id) <= LONGEST_ID:
                await self._connect(stream, ID(question.peer.id))
            else:
                raise Refused(Status.UNEXPECTED_MESSAGE)
        except Refused as refusal:
            with suppress(Exception):  # the peer is gone already
                await write_message(stream, hop_answer(refusal.status))
                await stream.close()

    async def _reserve(self, stream: INetStream) -> None:
        self._check(stream)
        for peer in self._accounts.holders:
            if not self._connections_to(ID.from_string(peer)):
                self._accounts.release(peer)
        now = trio.current_time()
        until = self._accounts.reserve(now, _peer_of(stream), _host_of(stream))
        reservation = Reservation(
            expire=int(time.time() + until - now),
            addrs=[Multiaddr(each).to_bytes() for each in self.addresses],
        )
        await write_message(stream, hop_answer(Status.OK, self._limit(), reservation))
        await stream.close()

    async def _connect(self, stream: INetStream, target: ID) -> None:
        self._check(stream)
        circuit = self._accounts.open(trio.current_time(), _peer_of(stream), _host_of(stream), PeerId(str(target)))
        try:
            with trio.CancelScope(deadline=circuit.ends_at) as scope:
                circuit.cut = scope.cancel
                await self._connect_on(circuit, stream, target, scope)
            if scope.cancelled_caught:
                await drop(stream)
        finally:
            circuit.close()

    async def _connect_on(self, circuit: Circuit, stream: INetStream, target: ID, scope: trio.CancelScope) -> None:
        other = await self._call(target, stream.muxed_conn.peer_id)
        try:
            await write_message(stream, hop_answer(Status.OK, self._limit()))
            await _forward_both(circuit, stream, other, scope, self._throttle)
        finally:
            await drop(other)
            await drop(stream)

    def _check(self, stream: INetStream) -> None:
        if not self.addresses or self._throttle.is_shut or goes_by_a_relay(stream):
            raise Refused(Status.PERMISSION_DENIED)

    async def _call(self, target: ID, source: ID) -> INetStream:
        """A stream on which `target` has agreed to be connected with `source`; Refused if there is none.

        All connections with the target are tried, the newest first, as an older one may be dead unnoticed.
        """
        with trio.move_on_after(ASK_LIMIT):
            for left, connection in reversed(list(enumerate(self._connections_to(target)))):
                with trio.move_on_after(TARGET_LIMIT if left else ASK_LIMIT):
                    if (stream := await self._call_on(connection, source)) is not None:
                        return stream
        raise Refused(Status.CONNECTION_FAILED)

    async def _call_on(self, connection: INetConn, source: ID) -> INetStream | None:
        """Ask the target on one connection. None if it does not answer or knows no relays; Refused if it declines."""
        try:
            stream = await self._open_stream(connection, STOP)
        except Exception:  # libp2p raises many types
            return None
        try:
            peer = PeerInfo(id=source.to_bytes())
            await write_message(stream, StopMessage(type=StopMessage.CONNECT, peer=peer, limit=self._limit()))
            if status_of(await read_message(stream, StopMessage)) is Status.OK:
                return stream
            raise Refused(Status.CONNECTION_FAILED)
        except BaseException as error:  # the stream is dropped in any case; cancellation is re-raised
            await drop(stream)
            if isinstance(error, Exception) and not isinstance(error, Refused):
                return None
            raise

    def _connections_to(self, peer: ID) -> list[INetConn]:
        """The open connections with a peer."""
        return [each for each in self._connections(peer) if not each.is_closed]

    def _limit(self) -> Limit:
        limits = self._accounts.limits
        return Limit(duration=int(limits.circuit_lasts), data=limits.circuit_carries)


async def _forward_both(
    circuit: Circuit, one: INetStream, other: INetStream, both: trio.CancelScope, throttle: Throttle
) -> None:
    """Forward both directions, until one end resets its stream, both have ended, or a limit is reached."""
    async with trio.open_nursery() as nursery:
        for source, target in ((one, other), (other, one)):
            nursery.start_soon(_forward, circuit, _muxed(source), _muxed(target), both, throttle)


async def _forward(
    circuit: Circuit, source: MuxedStream, target: MuxedStream, both: trio.CancelScope, throttle: Throttle
) -> None:
    source.most_window = FIRST_WINDOW
    paces = StreamPace(throttle.down), StreamPace(throttle.up)
    try:
        while data := await source.take_or_end(FRAME):
            if throttle.is_shut:
                raise Refused(Status.PERMISSION_DENIED)
            wait = circuit.carry(trio.current_time(), len(data))
            both.deadline = circuit.ends_at
            await target.write(data)
            for pace in paces:
                pace.passed(len(data))
            if wait := max(wait, *(pace.rest for pace in paces)):
                await trio.sleep(wait)
        await target.close()
    except Exception:  # one end is gone, or a limit is reached: the other direction ends, too
        both.cancel()


def _peer_of(stream: INetStream) -> PeerId:
    return PeerId(str(stream.muxed_conn.peer_id))


def _host_of(stream: INetStream) -> str:
    """The host at the other end, as it is counted; empty if it is gone."""
    place = stream.get_remote_address()
    return counted_host(place[0]) if place is not None else ""


def _muxed(stream: INetStream) -> MuxedStream:
    return cast(MuxedStream, cast(NetStream, stream).muxed_stream)

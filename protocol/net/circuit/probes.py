"""Two probes on new connections: where a peer sees us, and whether large packets reach it.

Where a peer sees us is asked on a connection dialled from our listening port: what libp2p's identify reports on other
connections is of no use, as each of them was dialled from a port of its own.

Some paths drop full-size packets without an error: tunnels behind a firewall that drops ICMP. There handshakes and
short messages pass, and the first long message is stuck for ever. So one short libp2p ping is sent, and when it is
back, as many at once as fill several packets. The way back is not tested, as the peer answers ping by ping.

Belongs to the trio thread.
"""

from __future__ import annotations

import os
from contextlib import suppress

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import INetConn, INetStream
from libp2p.identity.identify.identify import parse_identify_response
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.multiaddrs import host_and_port, is_relayed
from shoal.protocol.net.circuit.messages import drop
from shoal.protocol.net.circuit.relay import OpenStream
from shoal.protocol.net.circuit.sockets import dial_from, family_of, listening_ports
from shoal.protocol.net.libp2p.session import LINE
from shoal.protocol.net.libp2p.swarm import BoundedRawConnection, BoundedSwarm

IDENTIFY = "/ipfs/id/1.0.0"
SEEN_LIMIT = 5.0  # seconds
LONGEST = 64 << 10  # bytes of an identify answer
PING = "/ipfs/ping/1.0.0"
PING_SIZE = 32  # bytes
MANY = 128  # pings: three packets of 1,460 bytes
PACKETS_LIMIT = 4.0  # seconds: a lost packet is sent again after 0.2, 0.6 and 1.4


async def seen_by(swarm: Swarm, open_stream: OpenStream, peer: ID, address: str) -> tuple[str, int]:
    """Where the peer, dialled at `address`, sees us, as a multiaddr, and our port there; TransportError if unknown."""
    place = host_and_port(address)
    if place is None:
        raise TransportError("this is no connection of TCP")
    goal = (str(place[0]), place[1])
    source = listening_ports(swarm).get(family_of(goal[0]))
    if source is None:
        raise TransportError("we do not listen there")
    with trio.move_on_after(SEEN_LIMIT):
        try:
            line = await dial_from(source, family_of(goal[0]), goal)
        except OSError as error:
            raise TransportError(str(error)) from error
        fresh = await swarm.upgrade_outbound_raw_conn(BoundedRawConnection(line, True), peer)
        try:
            return await _ask_identify(open_stream, fresh), source[1]
        finally:
            with trio.CancelScope(shield=True):
                await fresh.close()
    raise TransportError(f"no answer in {SEEN_LIMIT:g} s")


async def _ask_identify(open_stream: OpenStream, connection: INetConn) -> str:
    stream = await open_stream(connection, IDENTIFY)
    try:
        said = b""
        with suppress(StreamEOF):
            while len(said) <= LONGEST:
                said += await stream.read(LINE)
        return str(Multiaddr(parse_identify_response(said).observed_addr))
    except (ValueError, DecodeError) as error:
        raise TransportError(f"it does not say where it sees us: {error}") from error
    finally:
        await drop(stream)


async def large_packets_pass(swarm: BoundedSwarm, open_stream: OpenStream, connection: INetConn) -> bool:
    """Whether large packets reach a peer that we have dialled; TransportError if not even small ones do."""
    [address, *_] = connection.muxed_conn.get_transport_addresses()
    if is_relayed(str(address)):
        raise TransportError("a relay's packets are not the peer's")
    fresh = None
    with trio.move_on_after(PACKETS_LIMIT):
        fresh = await swarm.dial_addr(address, connection.muxed_conn.peer_id)
    if fresh is None:
        raise TransportError(f"no answer in {PACKETS_LIMIT:g} s")
    try:
        return await _try_packets(open_stream, fresh)
    finally:
        with trio.CancelScope(shield=True):
            await fresh.close()


async def _try_packets(open_stream: OpenStream, connection: INetConn) -> bool:
    stream = await open_stream(connection, PING)
    try:
        if not await _comes_back(stream, 1):
            raise TransportError(f"no answer in {PACKETS_LIMIT:g} s")
        return await _comes_back(stream, MANY)
    finally:
        with trio.CancelScope(shield=True):
            await drop(stream)


async def _comes_back(stream: INetStream, pings: int) -> bool:
    sent, came = os.urandom(PING_SIZE * pings), b""
    with trio.move_on_after(PACKETS_LIMIT) as scope:
        await stream.write(sent)
        while len(came) < len(sent):
            came += await stream.read(len(sent) - len(came))
    return not scope.cancelled_caught and came == sent

"""Where another peer sees us, when we dial it from the port that we listen on. Belongs to the trio thread.

What libp2p's identify tells of other connections is of no use: each left by a port of its own.
"""

from __future__ import annotations

from contextlib import suppress

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import INetConn
from libp2p.identity.identify.identify import parse_identify_response
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from shoal.protocol.circuit.relay import OpenStream
from shoal.protocol.circuit.sockets import dial_from, family_of, listening_ports
from shoal.protocol.circuit.speech import drop
from shoal.protocol.errors import TransportError
from shoal.protocol.multiaddrs import host_and_port
from shoal.protocol.session import LINE
from shoal.protocol.swarm import Raw

IDENTIFY = "/ipfs/id/1.0.0"
LIMIT = 5.0  # seconds
LONGEST = 64 << 10  # bytes of what a peer says of itself


async def seen_by(swarm: Swarm, open_stream: OpenStream, peer: ID, address: str) -> tuple[str, int]:
    """Our place as a peer sees it whom we dial there, and the port we came from."""
    place = host_and_port(address)
    if place is None:
        raise TransportError("this is no connection of TCP")
    goal = (str(place[0]), place[1])
    source = listening_ports(swarm).get(family_of(goal[0]))
    if source is None:
        raise TransportError("we do not listen there")
    with trio.move_on_after(LIMIT):
        try:
            line = await dial_from(source, family_of(goal[0]), goal)
        except OSError as error:
            raise TransportError(str(error)) from error
        fresh = await swarm.upgrade_outbound_raw_conn(Raw(line, True), peer)
        try:
            return await _ask(open_stream, fresh), source[1]
        finally:
            with trio.CancelScope(shield=True):
                await fresh.close()
    raise TransportError(f"no answer in {LIMIT:g} s")


async def _ask(open_stream: OpenStream, connection: INetConn) -> str:
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

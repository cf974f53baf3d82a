"""Whether large packets come through to a peer, tried on a connection of its own. Belongs to the trio thread.

Some ways swallow packets of full size and tell nobody: tunnels behind a firewall that drops ICMP. Handshakes and short
words pass there, and the first long message stops for ever. So one short word is sent, by libp2p's ping, and when
it is back, as many at once as fill several packets. The way back is not tried, as the peer answers word by word.
"""

from __future__ import annotations

import os

import trio
from libp2p.abc import INetConn, INetStream

from shoal.protocol.circuit.relay import OpenStream
from shoal.protocol.circuit.speech import drop
from shoal.protocol.errors import TransportError
from shoal.protocol.multiaddrs import is_relayed
from shoal.protocol.swarm import Keeper

PING = "/ipfs/ping/1.0.0"
WORD = 32  # bytes
MANY = 128  # words: three packets of 1,460 bytes
LIMIT = 4.0  # seconds: a lost packet is sent again after 0.2, 0.6 and 1.4


async def large_ones_pass(swarm: Keeper, open_stream: OpenStream, connection: INetConn) -> bool:
    """Whether they come to the other end of a connection that we dialled; TransportError if not even small ones do."""
    [address, *_] = connection.muxed_conn.get_transport_addresses()
    if is_relayed(str(address)):
        raise TransportError("a relay's packets are not the peer's")
    fresh = None
    with trio.move_on_after(LIMIT):
        fresh = await swarm.dial_addr(address, connection.muxed_conn.peer_id)
    if fresh is None:
        raise TransportError(f"no answer in {LIMIT:g} s")
    try:
        return await _try(open_stream, fresh)
    finally:
        with trio.CancelScope(shield=True):
            await fresh.close()


async def _try(open_stream: OpenStream, connection: INetConn) -> bool:
    stream = await open_stream(connection, PING)
    try:
        if not await _comes_back(stream, 1):
            raise TransportError(f"no answer in {LIMIT:g} s")
        return await _comes_back(stream, MANY)
    finally:
        with trio.CancelScope(shield=True):
            await drop(stream)


async def _comes_back(stream: INetStream, words: int) -> bool:
    sent, came = os.urandom(WORD * words), b""
    with trio.move_on_after(LIMIT) as scope:
        await stream.write(sent)
        while len(came) < len(sent):
            came += await stream.read(len(sent) - len(came))
    return not scope.cancelled_caught and came == sent

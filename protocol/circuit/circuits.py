"""Everything of circuits that a host needs: its streams, reservations, and connections that go by a relay.

Belongs to the trio thread.
"""

from __future__ import annotations

from libp2p.abc import INetConn
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from shoal.protocol.circuit.book import Book
from shoal.protocol.circuit.client import Client
from shoal.protocol.circuit.holder import Promise
from shoal.protocol.circuit.mirror import seen_by
from shoal.protocol.circuit.punch import DCUTR, Puncher, direct_connection
from shoal.protocol.circuit.relay import OpenStream, Relay
from shoal.protocol.circuit.speech import HOP, STOP
from shoal.protocol.errors import TransportError
from shoal.protocol.ids import PeerId, short
from shoal.protocol.multiaddrs import place_of, relay_of
from shoal.protocol.packets import large_ones_pass
from shoal.protocol.swarm import Keeper
from shoal.protocol.throttle import Throttle


class Circuits:
    """A relay for others, while it has addresses, and the client of theirs."""

    def __init__(self, swarm: Keeper, open_stream: OpenStream, book: Book, throttle: Throttle) -> None:
        self._swarm = swarm
        self._open_stream = open_stream
        self.puncher = Puncher(swarm, open_stream)
        self._client = Client(swarm, open_stream, self.puncher)
        self.relay = Relay(book, swarm.get_connections, open_stream, throttle)
        self.handlers = {HOP: self.relay.serve, STOP: self._client.accept, DCUTR: self.puncher.serve}

    async def reserve(self, relay: PeerId) -> Promise:
        """A reservation with a relay that we are connected with directly."""
        return await self._client.reserve(self._direct(relay))

    def forget(self, relay: PeerId) -> None:
        """Nobody is to reach us by this relay any more."""
        self._client.forget(relay)

    async def seen_by(self, relay: PeerId, at: str = "") -> tuple[str, int]:
        """Where a peer that is dialled at this address sees the port that we listen on, and that port."""
        at = at or str(self._direct(relay).muxed_conn.get_transport_addresses()[0])
        return await seen_by(self._swarm, self._open_stream, ID.from_string(relay), at)

    async def large_ones_pass(self, peer: PeerId) -> bool:
        """Whether large packets come to a peer that we have dialled; TransportError if that cannot be told."""
        return await large_ones_pass(self._swarm, self._open_stream, self._direct(peer))

    async def dial(self, address: str, target: ID) -> INetConn:
        """A connection by a circuit: over the connection with the relay that there is, or a new one."""
        plain, name = relay_of(address)
        if not name:
            raise TransportError(f"the address {address} does not name its relay")
        connection = self._maybe_direct(PeerId(name))
        if connection is None:
            connection = await self._swarm.dial_addr(Multiaddr(plain), ID.from_string(name))
        return await self._client.dial(connection, place_of(address), target)

    def _direct(self, relay: PeerId) -> INetConn:
        connection = self._maybe_direct(relay)
        if connection is None:
            raise TransportError(f"not connected with the relay {short(relay)}")
        return connection

    def _maybe_direct(self, relay: PeerId) -> INetConn | None:
        return direct_connection(self._swarm, ID.from_string(relay))

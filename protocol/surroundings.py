"""What one neighbour shares with all others: the transport, the tasks, and where it hands on what comes in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from shoal.protocol.allowance import Allowances
from shoal.protocol.bandwidth import Bandwidth, Meters
from shoal.protocol.bulk.dock import Dock
from shoal.protocol.bulk.filling import Path
from shoal.protocol.bulk.pacing import Pacing, Turn, Unpaced
from shoal.protocol.calls import Serve
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId, RunId
from shoal.protocol.multiaddrs import any_is_public
from shoal.protocol.paths import RELAYED
from shoal.protocol.transport import Transport
from shoal.protocol.wire import Message


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a neighbour needs of the network that it belongs to."""

    transport: Transport
    dock: Dock  # where sockets for payloads come to be
    failures: Allowances[str]  # of dials, see dialing.py
    bulk_queue: int
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    complain: Callable[[RemoteError], None]
    count: Callable[[RunId | None, int, int, str | None], None]  # (run, bytes sent, bytes received, path if in bulk)
    takes: Callable[[RunId | None], bool]
    is_fellow: Callable[[PeerId], bool]  # whether a peer is in a run with us
    on_message: Callable[[PeerId, RunId | None, Message], None]
    on_call: Serve
    on_left: Callable[[PeerId, RunId, Message, bool], None]
    on_stranger: Callable[[str], None]  # at this address another peer answers than was looked for
    bandwidth: Bandwidth = field(default_factory=Bandwidth)  # our own
    pacing: Pacing = field(default_factory=Pacing)  # of what leaves by our line to the internet

    def line_to(self, peer: PeerId) -> Meters | None:
        """What of our line payloads to and from a peer pass; None if a relay is what limits them."""
        if self.transport.path(peer) == RELAYED:
            return None
        return self.bandwidth.far if self._is_far(peer) else self.bandwidth.near

    def turn_of(self, peer: PeerId, connection: socket.socket, path: Path) -> Turn:
        """How a socket to a peer is paced."""
        return self.pacing.turn(peer, connection, path) if self._is_far(peer) else Unpaced()

    def _is_far(self, peer: PeerId) -> bool:
        return any_is_public(self.transport.remote_addresses(peer))

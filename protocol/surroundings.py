"""What one neighbour shares with all others: the transport, the tasks, and where it hands on what comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from shoal.protocol.allowance import Allowances
from shoal.protocol.bandwidth import Bandwidth, Meters
from shoal.protocol.bulk.dock import Dock
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
    bandwidth: Bandwidth = field(default_factory=Bandwidth)  # our own

    def line_to(self, peer: PeerId) -> Meters | None:
        """What of our line payloads to and from a peer pass; None if a relay is what limits them."""
        if self.transport.path(peer) == RELAYED:
            return None
        is_far = any_is_public(self.transport.remote_addresses(peer))
        return self.bandwidth.far if is_far else self.bandwidth.near

"""What all peers of one network share: handlers, tasks, counters, our own line, and the log of peers' mistakes.

Rules:
- The owner of the network gives it the handlers when it starts it; an exception in one is logged and ends nothing.
- Of each peer, a kind of mistake is logged once, and at most MAX_REASONS kinds; of all peers, at a bounded rate. So
  nobody can make us remember or log without bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.multiaddrs import any_is_public
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.base.wire import Message
from shoal.protocol.net.bulk.endpoint import Endpoint
from shoal.protocol.net.bulk.pacing import Pacing, SocketPacer, Unpaced
from shoal.protocol.net.bulk.spare_capacity import PathRtt
from shoal.protocol.net.measure.rates import Bandwidth, Meters, Traffic
from shoal.protocol.net.peers.calls import Serve
from shoal.protocol.net.system.tasks import Tasks
from shoal.protocol.net.transport.transport import Transport

MAX_PEERS = 16_384  # more than a run may have members, as their addresses are kept only here
MAX_REASONS = 16  # kinds of mistakes of one peer that are logged
LINES = (100, 0.1)  # log lines about all peers, in a burst and per second

log = logging.getLogger(__name__)


def _refuse(peer: PeerId, message: Message) -> Message:
    raise LocalError(f"{type(message).__name__} is not served here", code="not-spoken")


@dataclass(frozen=True, slots=True)
class Handlers:
    """The questions and events that a network passes to its owner; without an answer nothing is taken or served."""

    takes: Callable[[RunId | None], bool] = lambda run: False  # whether messages of a run are read at all
    shares_run: Callable[[PeerId], bool] = lambda peer: False  # whether a peer is in a run with us
    on_message: Callable[[PeerId, RunId | None, Message], None] = lambda peer, run, message: None
    on_call: Serve = _refuse  # answers a call, at once or later
    on_link: Callable[[PeerId, bool], None] = lambda peer, up: None
    on_ended: Callable[[PeerId], None] = lambda peer: None  # after on_link: its process is there no more
    on_payload_done: Callable[[PeerId, RunId, Message, bool], None] = lambda peer, run, message, sent: None
    on_stranger: Callable[[str], None] = lambda address: None  # another peer answers there


class Shared:
    """The common objects of a network, given to each of its peers."""

    def __init__(
        self,
        transport: Transport,
        endpoint: Endpoint,
        failures: Allowances[str],
        bulk_queue: int,
    ) -> None:
        self.handlers = Handlers()  # of our owner, from the start of the network on
        self.transport, self.endpoint = transport, endpoint
        self.failures = failures  # failed dials of each host (dialing.py)
        self.bulk_queue = bulk_queue  # bytes of payloads that may wait for one peer
        self.bandwidth = Bandwidth()  # of our own line
        self._pacing = Pacing()  # of payloads to peers on the internet
        self._tasks = Tasks(lambda error: log.error("a task of the network failed", exc_info=error))
        self._traffic: dict[RunId, Traffic] = {}
        self._mistakes: OrderedDict[PeerId | None, set[str]] = OrderedDict()
        self._may_write = Allowance(*LINES)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task, which is cancelled when the network closes."""
        return self._tasks.spawn(work)

    async def close(self) -> None:
        """Cancel all tasks."""
        await self._tasks.close()

    def tell(self, handler: Callable[..., None], *args: Any) -> None:
        """Call a handler of our owner; an exception in it must not end a stream."""
        try:
            handler(*args)
        except RemoteError as error:
            self.complain(error)
        except Exception:  # a bug of ours with one message; the stream goes on
            log.exception("a handler of the network failed")

    def complain(self, error: RemoteError) -> None:
        """Log a mistake of a peer, unless the same kind was logged for it before."""
        reasons = self._mistakes.setdefault(error.peer, set())
        self._mistakes.move_to_end(error.peer)
        if error.reason not in reasons and len(reasons) < MAX_REASONS:
            reasons.add(error.reason)
            if self._may_write.take(asyncio.get_running_loop().time()):
                log.warning("%s", error, extra={"code": "peer-mistake"})
        if len(self._mistakes) > MAX_PEERS:
            self._mistakes.popitem(last=False)

    # -- bytes ----------------------------------------------------------------------------------------------

    def traffic(self, run: RunId) -> Traffic:
        """The traffic of `run`, counted since the first message for it or the first call of this method."""
        return self._traffic.setdefault(run, Traffic())

    def count(self, run: RunId | None, sent: int, received: int, path: str | None) -> None:
        """Count bytes of a run, as payloads by `path`; None: as messages."""
        if run is not None and run in self._traffic:
            self._traffic[run].count(sent, received, path)

    def line_to(self, peer: PeerId) -> Meters | None:
        """The meters of our line for payloads to and from a peer; None if it is relayed, as the relay is the limit."""
        if self.transport.path(peer) == RELAYED:
            return None
        return self.bandwidth.far if self._is_far(peer) else self.bandwidth.near

    def pacer_of(self, peer: PeerId, connection: socket.socket, path: PathRtt) -> SocketPacer:
        """The pacer of a bulk socket to a peer."""
        return self._pacing.pacer(peer, connection, path) if self._is_far(peer) else Unpaced()

    def _is_far(self, peer: PeerId) -> bool:
        return any_is_public(self.transport.remote_addresses(peer))

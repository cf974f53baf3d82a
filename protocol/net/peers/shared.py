"""What all peers of one network share: handlers, tasks, counters, our own line, and the log of peers' mistakes.

Rules:
- The owner of the network sets the handlers before it starts; what a handler raises is logged and ends nothing.
- Each kind of mistake of a peer is logged once, and MAX_REASONS of them; of all peers, at a bounded rate. Nobody can
  make us remember, or write, more than a bounded amount.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine
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

MAX_PEERS = 16_384  # more than a run may have members, as only here their addresses are kept
MAX_REASONS = 16  # kinds of mistakes of one peer that are logged
LINES = (100, 0.1)  # about all peers, in a burst and per second

log = logging.getLogger(__name__)


class Handlers:
    """What the owner of a network is asked and told."""

    def __init__(self) -> None:
        self.takes: Callable[[RunId | None], bool] = lambda run: True  # of which runs messages are read at all
        self.shares_run: Callable[[PeerId], bool] = lambda peer: True  # whether a peer is in a run with us
        self.on_message: Callable[[PeerId, RunId | None, Message], None] = lambda peer, run, message: None
        self.on_call: Serve = _refuse  # at once, or later
        self.on_link: Callable[[PeerId, bool], None] = lambda peer, up: None
        self.on_payload_done: Callable[[PeerId, RunId, Message, bool], None] = lambda peer, run, message, sent: None
        self.on_stranger: Callable[[str], None] = lambda address: None  # where another answered than was looked for


class Shared:
    """Made once for a network, and given to each of its peers."""

    def __init__(
        self,
        handlers: Handlers,
        transport: Transport,
        endpoint: Endpoint,
        failures: Allowances[str],
        bulk_queue: int,
    ) -> None:
        self.handlers, self.transport, self.endpoint = handlers, transport, endpoint
        self.failures = failures  # of dials, that each host may cause (dialing.py)
        self.bulk_queue = bulk_queue  # bytes of payloads that may wait for one peer
        self.bandwidth = Bandwidth()  # our own
        self._pacing = Pacing()  # of what leaves by our line to the internet
        self._tasks = Tasks(lambda error: log.error("a task of the network failed", exc_info=error))
        self._traffic: dict[RunId, Traffic] = {}
        self._mistakes: OrderedDict[PeerId | None, set[str]] = OrderedDict()
        self._may_write = Allowance(*LINES)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin `work`, which ends with the network at the latest."""
        return self._tasks.spawn(work)

    async def close(self) -> None:
        """End all tasks."""
        await self._tasks.close()

    def tell(self, handler: Callable[..., None], *args: Any) -> None:
        """Run a handler of our owner; its mistakes must not end a stream."""
        try:
            handler(*args)
        except RemoteError as error:
            self.complain(error)
        except Exception:  # our own mistake with one message: it is in the log, and the stream has others
            log.exception("a handler of the network failed")

    def complain(self, error: RemoteError) -> None:
        """Log a peer's mistake, unless that kind of it was."""
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
        """The bytes of `run`, since we first sent something for it or asked."""
        return self._traffic.setdefault(run, Traffic())

    def count(self, run: RunId | None, sent: int, received: int, path: str | None) -> None:
        """So many bytes of a run have left, or come, as payloads by `path`, or as messages."""
        if run is not None and run in self._traffic:
            self._traffic[run].count(sent, received, path)

    def line_to(self, peer: PeerId) -> Meters | None:
        """What of our line payloads to and from a peer pass; None if a relay is what limits them."""
        if self.transport.path(peer) == RELAYED:
            return None
        return self.bandwidth.far if self._is_far(peer) else self.bandwidth.near

    def pacer_of(self, peer: PeerId, connection: socket.socket, path: PathRtt) -> SocketPacer:
        """How a socket to a peer is paced."""
        return self._pacing.pacer(peer, connection, path) if self._is_far(peer) else Unpaced()

    def _is_far(self, peer: PeerId) -> bool:
        return any_is_public(self.transport.remote_addresses(peer))


def _refuse(peer: PeerId, message: Message) -> Message:
    raise LocalError(f"{type(message).__name__} is not served here")

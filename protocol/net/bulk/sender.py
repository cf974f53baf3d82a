"""The sending end of a bulk socket: a thread takes payloads from the backlog, encodes, seals and writes them.

Rules:
- All that takes time (encoding, sealing, writing) releases Python's global lock.
- When the socket breaks, the payload in hand and all that the peer has not acknowledged go back to the backlog
  (flow_control.py). Receiving a payload twice does no harm.
- A contribution is taken only while the peer gives credit, a mean at any time; neither while too much is
  unacknowledged (flow_control.py).
- The loop reads from the socket: the peer's reports, and the end of the connection. No write would notice that end
  while nothing is to be sent, and the first write after it would not fail either.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from shoal.protocol.base.errors import TransportError
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import TRIES, UNWANTED, Backlog, Packed, QueuedPayload
from shoal.protocol.net.bulk.flow_control import RECORD, Credit, ReportReader, Unacknowledged
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.bulk.pacing import SocketPacer
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.sealing import Sealer
from shoal.protocol.net.bulk.spare_capacity import SpareCapacity, tcp_info
from shoal.protocol.net.system.throttle import RateLimit

READ_SIZE = 64 * RECORD  # bytes of reports that are read at a time

log = logging.getLogger(__name__)

Wrote = Callable[[float, float, int], None]


class Sender:
    """Sends payloads on one socket; calls `wrote(begin, end, bytes)` for each and `ended()` at the end, in the loop."""

    def __init__(
        self,
        opened: BulkSocket,
        backlog: Backlog,
        capacity: SpareCapacity,
        pacer: SocketPacer,
        up: RateLimit,
        posts: Posts,
        wrote: Wrote,
        ended: Callable[[], None],
    ) -> None:
        self._socket, self._sealer, self._listener = opened.socket, Sealer(opened.key), ReportReader(opened.key)
        self._credit, self.capacity = Credit(), capacity
        self._backlog, self._pacer, self._up, self._posts = backlog, pacer, up, posts
        self._wrote, self._ended = wrote, ended
        self._unacknowledged = Unacknowledged()
        self._is_open, self._has_broken, self._is_watched = True, False, False
        self.thread = threading.Thread(target=self._run, name="bulk-out", daemon=True)

    def start(self) -> None:
        """Begin to take payloads."""
        asyncio.get_running_loop().add_reader(self._socket, self._hear)
        self._is_watched = True
        self.thread.start()

    def close(self) -> None:
        """Take no more payloads, and break off the one being written. `ended` follows."""
        self._is_open = False
        self._unwatch()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._backlog.wake()

    def _hear(self) -> None:
        """Read reports, or the end of the connection."""
        try:
            data = self._socket.recv(READ_SIZE, socket.MSG_DONTWAIT)
            if (report := self._listener.heard(data)) is not None:
                self._unacknowledged.hear(report.taken)
                self._credit.grant(report.credit)
                self._backlog.wake()
        except BlockingIOError:
            return
        except (OSError, TransportError) as error:
            log.debug("a bulk socket breaks: %s", error)
            data = b""
        if not data:
            self._has_broken = True
            self.close()

    def _flows(self) -> Collection[Flow] | None:
        """The flows that may be sent now; None once the socket is closed."""
        if not self._is_open:
            return None
        if self._unacknowledged.is_full:
            return ()
        return (Flow.SCATTER, Flow.GATHER) if self._credit.available > 0 else (Flow.GATHER,)

    def _run(self) -> None:
        queued: QueuedPayload | None = None
        try:
            while (queued := self._backlog.take(self._flows, self._pacer.rest)) is not None:
                self._pacer.take()
                self._send(queued)
        except OSError:
            self._has_broken = True
        except Exception:  # a bug of ours, or no memory: the next socket may succeed
            log.exception("a payload could not be sent")
            self._has_broken = True
        finally:
            self._pacer.rest()
            if self._has_broken:
                self._give_back(queued)
            if not self._is_watched:  # else the loop has to stop watching it first
                self._socket.close()
            self._posts.post(self._finish)

    def _unwatch(self) -> None:
        if self._is_watched:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._is_watched = False

    def _finish(self) -> None:
        self._unwatch()
        self._socket.close()
        self._ended()

    def _send(self, queued: QueuedPayload) -> None:
        if not queued.is_wanted():
            if not queued.was_sent:
                self._posts.post(queued.lost, UNWANTED)
            return
        try:
            packed = queued.pack()
        except Exception as error:  # a bug of ours with one payload, which must not cost the others
            log.exception("a payload cannot be encoded")
            self._posts.post(queued.lost, TransportError(f"cannot be encoded: {error}"))
            return
        self._write(queued, packed)

    def _write(self, queued: QueuedPayload, packed: Packed) -> None:
        if queued.flow is Flow.SCATTER:
            self._credit.spend(len(packed[2]))
        begin, sealed = time.monotonic(), self._sealer.seal(*packed)
        self._unacknowledged.add(queued, len(packed[2]))
        self._push(sealed)
        if (seen := tcp_info(self._socket)) is not None:
            self.capacity.see(seen)
        size = len(sealed)
        self._posts.post(self._wrote, begin, time.monotonic(), size)
        if not queued.was_sent:
            queued.was_sent = True
            self._posts.post(queued.sent, size)

    def _push(self, data: memoryview) -> None:
        """Write all of `data`, within the owner's rate."""
        if self._up.rate is None:
            self._up.count(len(data))
            self._socket.sendall(data)
            return
        for begin in range(0, len(data), self._up.piece):
            piece = data[begin : begin + self._up.piece]
            self._up.spend(len(piece))
            self._socket.sendall(piece)

    def _give_back(self, in_hand: QueuedPayload | None) -> None:
        """Put back what may not have arrived; but not what TRIES sockets broke with, as it may be the cause."""
        payloads = self._unacknowledged.payloads()
        if in_hand is not None and in_hand not in payloads:
            payloads.append(in_hand)
        for each in payloads:
            each.tries += 1
        self._backlog.put_back([each for each in payloads if each.tries < TRIES])
        for each in payloads:
            if each.tries >= TRIES and not each.was_sent:
                self._posts.post(each.lost, TransportError("the connection was lost, again and again"))

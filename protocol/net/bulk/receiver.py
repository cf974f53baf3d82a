"""The receiving end of a bulk socket: a thread reads, decrypts and decodes payloads, and hands them to the loop.

Rules:
- A sealed payload is read into a reused buffer and decrypted into its final memory; it is not copied after that.
- Contributions need credit (flow_control.py): a sender without credit loses the connection. Means are always taken.
- At most AHEAD payloads wait for the loop. The sender gets a report of what the loop has taken (flow_control.py).
- A sender that breaks the framing or the seal is logged by name and loses the connection. A bad message costs its
  sender that message and a REST, during which we read nothing.
- A payload of a run that we are not in is read, to get past it, and dropped undecoded.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.flow_control import Credit, MemoryAccount, Received, Report, ReportWriter
from shoal.protocol.net.bulk.framing import PREFIX, Sizes, run_of, sizes, unpacked
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.sealing import TAG, Opener
from shoal.protocol.net.system.throttle import RateLimit, StreamPace
from shoal.protocol.tensors.memory import MEMORY

AHEAD = 4  # payloads
REST = 0.2  # seconds without reading after a bad message
# Milliseconds until a connection ends whose TCP gets no acknowledgement of a report; keep-alive does not probe then.
UNHEARD = (socket.TCP_USER_TIMEOUT, 40_000) if hasattr(socket, "TCP_USER_TIMEOUT") else None

log = logging.getLogger(__name__)

Came = Callable[[RunId, Message | None, float, float, int], None]


class Receiver:
    """Calls `came(run, message, begin, end, bytes)` in the loop for each payload, and `ended` at the end.

    `message` is None if it was bad, or of a run that we are not in.
    """

    def __init__(
        self,
        opened: BulkSocket,
        sender: PeerId,
        memory: MemoryAccount,
        credit: Credit,
        down: RateLimit,
        posts: Posts,
        takes: Callable[[RunId], bool],
        complain: Callable[[RemoteError], None],
        came: Came,
        ended: Callable[[], None],
    ) -> None:
        self._socket, self._opener, self._reports = opened.socket, Opener(opened.key), ReportWriter(opened.key)
        if UNHEARD is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, *UNHEARD)
        if down.rate is not None:  # else far more than the rate allows would be on its way before we read it
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, StreamPace(down).window)
        self._sender, self._memory, self._down, self.credit = sender, memory, down, credit
        self._posts, self._takes, self._complain = posts, takes, complain
        self._came, self._ended = came, ended
        self._sealed = memoryview(bytearray(1 << 20))
        self._ahead, self._taken = threading.Semaphore(AHEAD), Received()
        self._is_open = True
        self._was_bad = False
        self.thread = threading.Thread(target=self._run, name="bulk-in", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self.thread.start()

    def close(self) -> None:
        """Stop reading. `ended` follows."""
        self._is_open = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._ahead.release()

    def report(self) -> None:
        """Send a report: the total credit, and the total of payloads that were taken."""
        self._taken.told()
        record = self._reports.record(Report(self.credit.granted, self._taken.count))
        try:
            if self._socket.send(record, socket.MSG_DONTWAIT) == len(record):
                return
        except OSError as error:
            log.debug("a report cannot be sent: %s", error)
        self.close()  # the sender does not read its reports

    def _run(self) -> None:
        try:
            while self._is_open and self._receive():
                if self._was_bad:
                    self._was_bad = False
                    time.sleep(REST)
        except RemoteError as error:
            self._posts.post(self._complain, error)
        except TransportError as error:
            self._posts.post(self._complain, RemoteError(str(error), self._sender))
        except OSError:
            pass  # the connection is lost, or we have closed it
        except Exception:  # our own mistake: what comes after would be taken for what it is not
            log.exception("a payload could not be taken")
        finally:
            self._socket.close()
            self._posts.post(self._ended)

    def _receive(self) -> bool:
        """Receive one frame; False if the stream has ended."""
        sealed = self._sealed
        if not self._read(sealed[: PREFIX.size]):
            return False
        prefix = bytes(sealed[: PREFIX.size])
        begin, size = time.monotonic(), sizes(prefix, self._sender)
        if not self._read(sealed[: size.head + TAG]):
            return False
        run, rest = run_of(self._opener.head(sealed[: size.head + TAG], prefix), self._sender)
        payload = self._receive_payload(size)
        if payload is None:
            return False
        message = self._message(rest, payload, size.flow) if self._takes(run) else None
        del payload
        self._ahead.acquire()
        on_wire = PREFIX.size + size.head + size.payload + 2 * TAG
        self._posts.post(self._hand_on, run, message, begin, time.monotonic(), on_wire)
        return True

    def _message(self, head: bytes, payload: memoryview, flow: Flow) -> Message | None:
        try:
            return unpacked(head, payload, flow, self._sender)
        except RemoteError as error:
            self._was_bad = True
            self._posts.post(self._complain, error)
            return None

    def _receive_payload(self, size: Sizes) -> memoryview | None:
        """The decrypted payload, in its final memory; None if the stream has ended."""
        slot = self._room(size)
        if len(self._sealed) < size.payload + TAG:
            self._sealed = memoryview(bytearray(size.payload + TAG))
        sealed = self._sealed[: size.payload + TAG]
        if not self._read(sealed):
            return None
        self._opener.payload(sealed, slot)
        return slot

    def _room(self, size: Sizes) -> memoryview:
        if size.flow is Flow.GATHER:
            return MEMORY.lend(size.payload)
        self.credit.charge(size.payload, self._sender)
        return self._memory.lend(size.payload)

    def _read(self, into: memoryview) -> bool:
        """Fill `into`; False if the stream has ended."""
        while into:
            most = len(into) if self._down.rate is None else self._down.piece
            count = self._socket.recv_into(into, min(most, len(into)), socket.MSG_WAITALL)
            if not count:
                return False
            self._down.spend(count)
            into = into[count:]
        return True

    def _hand_on(self, run: RunId, message: Message | None, begin: float, end: float, size: int) -> None:
        self._ahead.release()
        self._came(run, message, begin, end, size)
        if self._taken.add(size):
            self.report()

"""Accepts bulk connections from peers that show a valid token; handshakes run in a bounded pool of threads.

Rules:
- One thread waits at each listening socket, and never for a connected peer: handshakes have a pool of threads and a
  bounded queue (`HandshakePool`).
- One host (IPv4 address, or IPv6 /64 network) gets only a share of the pool. A connection is closed at once if its host
  has used up that share, if the pool is full, or if its descriptor is one of those that are reserved for our own files.
- `close` does not wait for silent peers: it breaks off the handshakes that are under way.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import Digest
from shoal.protocol.net.bulk.handshake import BulkSocket, ListenerCertificate, Ticket, Tokens, admit, new_certificate
from shoal.protocol.net.libp2p.inbound_limits import counted_host
from shoal.protocol.net.system.descriptors import is_reserved
from shoal.protocol.net.system.descriptors import share as at_most

T = TypeVar("T")

AT_ONCE = 16  # handshakes at work
WAITING = 48  # handshakes that wait for a thread
SHARE = 8  # handshakes of one other end: half of those at work
OF_FILES = 1 / 16  # of the files that may be open: as many handshakes there may be, each of which opens two
RETRY_ACCEPT = 0.1  # seconds

log = logging.getLogger(__name__)


class HandshakePool:
    """A bounded pool of threads for handshakes, with a bounded share for each other end. Thread-safe."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING, share: int = SHARE) -> None:
        self._most = at_most(OF_FILES, at_once + waiting)
        self._share = max(1, min(share, self._most // 2))
        self._pool = ThreadPoolExecutor(at_once, "bulk-handshake")
        self._lock = threading.Lock()
        self._of: Counter[str] = Counter()  # handshakes of each other end
        self._handles: set[socket.socket] = set()  # duplicates, to shut down by: TLS detaches the originals
        self._is_closed = False

    def begin(self, other: str, raw: socket.socket, work: Callable[[], T]) -> Future[T] | None:
        """Run `work` in the pool, which closes or hands on `raw`; if there is no room, close `raw` and return None."""
        with self._lock:
            has_room = self._of.total() < self._most and self._of[other] < self._share and not self._is_closed
            has_room = has_room and not is_reserved(raw.fileno())
            handle = _duplicate(raw) if has_room else None
            if handle is not None:
                self._of[other] += 1
                self._handles.add(handle)
                try:
                    return self._pool.submit(self._do, other, handle, work)
                except RuntimeError:  # no thread can be started
                    self._forget(other, handle)
        raw.close()
        return None

    def close(self) -> None:
        """Take no more handshakes, and break off those at work."""
        with self._lock:
            self._is_closed = True
            for handle in self._handles:
                with suppress(OSError):  # the connection has ended
                    handle.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown(wait=False)

    def join(self) -> None:
        """Wait until all threads have ended."""
        self._pool.shutdown()

    def _do(self, other: str, handle: socket.socket, work: Callable[[], T]) -> T:
        with self._lock:
            if handle not in self._handles:
                raise CancelledError  # `submit` failed for want of a thread, and left the job in the pool's queue
        try:
            return work()
        finally:
            with self._lock:
                self._forget(other, handle)

    def _forget(self, other: str, handle: socket.socket) -> None:
        self._handles.discard(handle)
        handle.close()
        self._of -= Counter([other])  # this drops zero counts


def _duplicate(raw: socket.socket) -> socket.socket | None:
    try:
        return raw.dup()
    except OSError:  # no more descriptors
        return None


class Acceptor:
    """Accepts on the node's bulk sockets; calls `came(ticket, socket)` in a pool thread for each admitted peer."""

    def __init__(self, tokens: Tokens, came: Callable[[Ticket, BulkSocket], None]) -> None:
        self._tokens, self._came = tokens, came
        self._handshakes = HandshakePool()
        self._is_closed = False
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def fingerprint(self) -> Digest:
        """The hash of the certificate that connecting peers are shown."""
        return self._certificate.fingerprint

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Accept connections on these listening sockets."""
        self._certificate: ListenerCertificate = new_certificate()
        for listener in listeners:
            waiting = threading.Thread(target=self._listen, args=(listener,), name="bulk-door", daemon=True)
            self._listeners.append(listener)
            self._threads.append(waiting)
            waiting.start()

    def close(self) -> None:
        """Accept nothing more."""
        self._is_closed = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in `accept`
            listener.close()
        self._handshakes.close()

    def join(self, limit: float) -> None:
        """Wait until all threads have ended; at most `limit` seconds for each listening one."""
        for each in self._threads:
            each.join(limit)
        self._handshakes.join()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                guest, where = listener.accept()
            except OSError as error:  # the peer has hung up, or no descriptor is left: neither lasts
                if self._is_closed:
                    return
                log.debug("nobody can be let in: %s", error)
                time.sleep(RETRY_ACCEPT)
                continue
            self._handshakes.begin(counted_host(where[0]), guest, partial(self._admit, guest))

    def _admit(self, guest: socket.socket) -> None:
        try:
            opened, ticket = admit(guest, self._certificate, lambda token: self._tokens.redeem(time.monotonic(), token))
        except TransportError as error:
            log.debug("somebody is not let in: %s", error)
        else:
            self._came(ticket, opened)

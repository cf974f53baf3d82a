"""Accepts bulk connections and lets in who shows a good token; handshakes run in a bounded pool of threads.

Rules:
- One thread waits at each listening socket, and never for a guest: handshakes have threads of their own, so many at a
  time, and so many wait for one.
- One host (of IPv6, one network of /64) has its share of these. Who has begun too many, or comes when too many wait, or
  would take one of the last files that may be open, which are for us, is hung up on at once.
- Whoever closes this need not wait for a silent peer: handshakes under way break off.
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

AT_ONCE = 16
WAITING = 48  # beyond those
SHARE = 8  # of one other end: half of those at work
OF_FILES = 1 / 16  # of the files that may be open, for all of them; each has two
BREATH = 0.1  # seconds

log = logging.getLogger(__name__)


class HandshakePool:
    """A bounded pool of threads for handshakes: those at work, and those that wait for a thread."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING, share: int = SHARE) -> None:
        self._most = at_most(OF_FILES, at_once + waiting)
        self._share = max(1, min(share, self._most // 2))
        self._pool = ThreadPoolExecutor(at_once, "bulk-handshake")
        self._lock = threading.Lock()
        self._of: Counter[str] = Counter()  # by other end
        self._handles: set[socket.socket] = set()  # second ones: TLS takes the first, and we could end nothing by it
        self._is_closed = False

    def begin(self, other: str, raw: socket.socket, work: Callable[[], T]) -> Future[T] | None:
        """Have `work` done, which ends or hands on `raw`; None if there is no room for it, and then `raw` is closed."""
        with self._lock:
            has_room = self._of.total() < self._most and self._of[other] < self._share and not self._is_closed
            has_room = has_room and not is_reserved(raw.fileno())
            handle = _second(raw) if has_room else None
            if handle is not None:
                self._of[other] += 1
                self._handles.add(handle)
                try:
                    return self._pool.submit(self._do, other, handle, work)
                except RuntimeError:  # no thread is to be had
                    self._forget(other, handle)
        raw.close()
        return None

    def close(self) -> None:
        """Take no more, and break off what is at work."""
        with self._lock:
            self._is_closed = True
            for handle in self._handles:
                with suppress(OSError):  # the other end has gone
                    handle.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown(wait=False)

    def join(self) -> None:
        """Wait until all threads have ended."""
        self._pool.shutdown()

    def _do(self, other: str, handle: socket.socket, work: Callable[[], T]) -> T:
        with self._lock:
            if handle not in self._handles:
                raise CancelledError  # it was turned away, as no thread could be had, and is still in the pool's queue
        try:
            return work()
        finally:
            with self._lock:
                self._forget(other, handle)

    def _forget(self, other: str, handle: socket.socket) -> None:
        self._handles.discard(handle)
        handle.close()
        self._of -= Counter([other])  # which forgets those who have none left


def _second(raw: socket.socket) -> socket.socket | None:
    try:
        return raw.dup()
    except OSError:  # no more descriptors
        return None


class Acceptor:
    """Listens at the node's bulk sockets; `came(ticket, socket)` is called in a thread for who was let in."""

    def __init__(self, tokens: Tokens, came: Callable[[Ticket, BulkSocket], None]) -> None:
        self._tokens, self._came = tokens, came
        self._handshakes = HandshakePool()
        self._is_closed = False
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def fingerprint(self) -> Digest:
        """That of the certificate which whoever comes is shown."""
        return self._certificate.fingerprint

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Take connections at these sockets, which listen."""
        self._certificate: ListenerCertificate = new_certificate()
        for listener in listeners:
            waiting = threading.Thread(target=self._listen, args=(listener,), name="bulk-door", daemon=True)
            self._listeners.append(listener)
            self._threads.append(waiting)
            waiting.start()

    def close(self) -> None:
        """Let in nobody any more."""
        self._is_closed = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # which wakes whoever waits there
            listener.close()
        self._handshakes.close()

    def join(self, limit: float) -> None:
        """Wait until all threads have ended; each for so many seconds."""
        for each in self._threads:
            each.join(limit)
        self._handshakes.join()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                guest, where = listener.accept()
            except OSError as error:  # who hung up meanwhile, or no more descriptors: both pass
                if self._is_closed:
                    return
                log.debug("nobody can be let in: %s", error)
                time.sleep(BREATH)
                continue
            self._handshakes.begin(counted_host(where[0]), guest, partial(self._admit, guest))

    def _admit(self, guest: socket.socket) -> None:
        try:
            opened, ticket = admit(guest, self._certificate, lambda token: self._tokens.redeem(time.monotonic(), token))
        except TransportError as error:
            log.debug("somebody is not let in: %s", error)
        else:
            self._came(ticket, opened)

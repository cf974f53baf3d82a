"""Handshakes that block, each in a thread: so many at a time, so many waiting, and of nobody more than its share.

Rules:
- Who has begun too many, or comes when too many wait, is turned away at once; and whoever has one of the last files
  that may be open, which are for us.
- Whoever closes this need not wait for a silent peer: what hangs at a socket breaks off.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from shoal.protocol.descriptors import is_reserved
from shoal.protocol.descriptors import share as at_most

T = TypeVar("T")

AT_ONCE = 16
WAITING = 48  # beyond those
SHARE = 8  # of one other end: half of those at work
OF_FILES = 1 / 16  # of the files that may be open, for all of them; each has two


class Handshakes:
    """At work, and waiting for a thread."""

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

"""A bulk socket that we send on: a thread that takes payloads from a backlog, encodes, seals and writes them.

Rules:
- All that takes time happens outside of Python's lock: encoding, sealing, writing.
- When the socket breaks, what was in hand goes back to the backlog, and so does what was written last (RECENT): it may
  lie in a buffer that nobody will read. To get a payload twice does no harm.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from shoal.protocol.bulk.backlog import Backlog, Packed, Parcel
from shoal.protocol.bulk.handshake import Opened
from shoal.protocol.bulk.posts import Posts
from shoal.protocol.bulk.sealing import Sealer
from shoal.protocol.errors import TransportError

RECENT = 8 << 20  # bytes: more than the buffers of both ends hold together

log = logging.getLogger(__name__)

Wrote = Callable[[float, float, int], None]


class Sender:
    """`wrote(begin, end, bytes)` and `ended()` are called in the loop."""

    def __init__(self, opened: Opened, backlog: Backlog, posts: Posts, wrote: Wrote, ended: Callable[[], None]) -> None:
        self._socket, self._sealer = opened.socket, Sealer(opened.key)
        self._backlog, self._posts = backlog, posts
        self._wrote, self._ended = wrote, ended
        self._recent: deque[tuple[Parcel, int]] = deque()
        self._recent_size = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="bulk-out", daemon=True)

    def start(self) -> None:
        """Begin to take."""
        self._thread.start()

    def close(self) -> None:
        """Take nothing more; what is being written breaks off. `ended` follows."""
        self._is_open = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._backlog.wake()

    def _run(self) -> None:
        parcel: Parcel | None = None
        try:
            while (parcel := self._backlog.take(lambda: self._is_open)) is not None:
                self._send(parcel)
        except OSError:
            self._backlog.put_back([*(each for each, _ in self._recent), *([parcel] if parcel is not None else [])])
        finally:
            self._socket.close()
            self._posts.post(self._ended)

    def _send(self, parcel: Parcel) -> None:
        try:
            packed = parcel.pack()
        except Exception as error:  # our own mistake with one payload; it must not cost the others
            log.exception("a payload cannot be encoded")
            self._posts.post(parcel.lost, TransportError(f"cannot be encoded: {error}"))
            return
        self._write(parcel, packed)

    def _write(self, parcel: Parcel, packed: Packed) -> None:
        begin, sealed = time.monotonic(), self._sealer.seal(*packed)
        self._socket.sendall(sealed)
        size = len(sealed)
        self._remember(parcel, size)
        self._posts.post(self._wrote, begin, time.monotonic(), size)
        if not parcel.was_sent:
            parcel.was_sent = True
            self._posts.post(parcel.sent, size)

    def _remember(self, parcel: Parcel, size: int) -> None:
        self._recent.append((parcel, size))
        self._recent_size += size
        while self._recent_size > RECENT:
            self._recent_size -= self._recent.popleft()[1]

"""Who stands at the door: takes connections, and lets in whoever shows a token.

Rules:
- One thread waits at each listening socket, and never for a guest: handshakes have threads of their own.
- One host (of IPv6, one network of /64) has its share of these; the next one that it begins is hung up on.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_network

from shoal.protocol.bulk.handshake import Door, Opened, admit, new_door
from shoal.protocol.bulk.handshakes import Handshakes
from shoal.protocol.bulk.tokens import Ticket, Tokens
from shoal.protocol.errors import TransportError
from shoal.protocol.ids import Digest

BREATH = 0.1  # seconds

log = logging.getLogger(__name__)


class Porter:
    """`came(ticket, socket)` is called in a thread."""

    def __init__(self, tokens: Tokens, came: Callable[[Ticket, Opened], None]) -> None:
        self._tokens, self._came = tokens, came
        self._handshakes = Handshakes()
        self._is_closed = False
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def fingerprint(self) -> Digest:
        """That of the certificate which whoever comes is shown."""
        return self._door.fingerprint

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Take connections at these sockets, which listen."""
        self._door: Door = new_door()
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
            self._handshakes.begin(_network_of(where[0]), guest, partial(self._admit, guest))

    def _admit(self, guest: socket.socket) -> None:
        try:
            opened, ticket = admit(guest, self._door, lambda token: self._tokens.redeem(time.monotonic(), token))
        except TransportError as error:
            log.debug("somebody is not let in: %s", error)
        else:
            self._came(ticket, opened)


def _network_of(host: str) -> str:
    """Of IPv6 the network of /64, as one machine has all of it."""
    return str(ip_network((host.partition("%")[0], 64), strict=False)) if ":" in host else host

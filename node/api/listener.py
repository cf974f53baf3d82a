"""A listening socket for HTTP by which strangers cannot exhaust the file descriptors of this process.

The number of connections that have sent no request is limited: the oldest is closed for the next, as with peers
(net/libp2p/inbound_limits.py). A connection that has sent a request stays. asyncio calls `accept`, and closes what it
returns.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from shoal.protocol.net.libp2p.inbound_limits import InboundLimits
from shoal.protocol.net.system.descriptors import is_reserved, share

MAX_WAITING, OF_FILES_WAITING = 128, 1 / 8  # connections without a request: at most, and as a share of open files
MAX_FROM_HOST, OF_FILES_HOST = 512, 1 / 4  # connections of one host: the same


class BoundedListener(socket.socket):
    """Takes the place of the listening socket `listener`, and its descriptor."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._limits = InboundLimits(share(OF_FILES_WAITING, MAX_WAITING), share(OF_FILES_HOST, MAX_FROM_HOST))
        self._here: dict[
            int, tuple[int, socket.socket]
        ] = {}  # by descriptor: the number in `InboundLimits`, and the socket

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; BlockingIOError if there is no room for it."""
        guest, where = super().accept()
        self._forget_gone()
        descriptor, host = guest.fileno(), str(where[0])
        number = None
        if _is_local(host) or not is_reserved(descriptor):
            number = self._limits.add(host, partial(_hang_up, guest))
        if number is None:
            guest.close()
            raise BlockingIOError
        self._here[descriptor] = number, guest
        return guest, where

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware that notes that a connection has sent a request."""
        known = request.transport.get_extra_info("socket") if request.transport is not None else None
        if known is not None and (found := self._here.get(known.fileno())) is not None:
            self._limits.finish_handshake(found[0])
        return await handler(request)

    def _forget_gone(self) -> None:
        for descriptor, (number, guest) in list(self._here.items()):
            if guest.fileno() < 0:
                self._limits.remove(number)
                del self._here[descriptor]


def _hang_up(guest: socket.socket) -> None:
    with suppress(OSError):
        guest.shutdown(socket.SHUT_RDWR)  # asyncio reads the end of the stream, and closes it


def _is_local(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False

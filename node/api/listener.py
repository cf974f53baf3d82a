"""A listening socket of HTTP that strangers cannot use up the files of this process by.

Who connects and asks nothing makes room for the next, the oldest first, as with peers
(net/libp2p/inbound_limits.py). Who has asked something is let in, and stays. asyncio calls `accept`, and closes what
that gives.
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

MAX_WAITING, OF_FILES_WAITING = 128, 1 / 8
MAX_FROM_HOST, OF_FILES_HOST = 512, 1 / 4


class BoundedListener(socket.socket):
    """Takes the place of a socket that listens."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._limits = InboundLimits(share(OF_FILES_WAITING, MAX_WAITING), share(OF_FILES_HOST, MAX_FROM_HOST))
        self._here: dict[int, tuple[int, socket.socket]] = {}  # their numbers, by descriptor

    def accept(self) -> tuple[socket.socket, Any]:
        """The next that there is room for; BlockingIOError if there is none now."""
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
        """Whoever asks something is let in."""
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
        guest.shutdown(socket.SHUT_RDWR)  # asyncio reads the end, and closes it


def _is_local(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False

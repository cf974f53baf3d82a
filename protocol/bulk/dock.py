"""Where bulk sockets come to be, of one node: the door at which others knock, and knocking at theirs.

Rules:
- Whoever wants to send asks for a token and dials; if it cannot, it gives a token, and has itself dialled. So one of
  two that can be dialled is enough, whoever sends.
- A peer is dialled only at hosts where it is known to be; it says no more than the port.
- Handshakes block, in a few threads of their own; of a host that has begun too many the next one is hung up on.
- What comes of it is told in the loop: `opened(peer, flow, whether we send on it, the socket)`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from shoal.protocol.bulk.handshake import LIMIT, Door, Opened, admit, knock, new_door
from shoal.protocol.bulk.posts import Posts
from shoal.protocol.bulk.sealing import bound
from shoal.protocol.bulk.tokens import Ticket, Tokens
from shoal.protocol.errors import TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.bulk import Flow, Knock, Knocked, MayIKnock
from shoal.protocol.throttle import Throttle

DIAL = 2.0  # seconds to reach one host
AT_ONCE = 16  # handshakes
OF_HOST = 8  # of them with one host that dials us
MAX_TRIED = 6  # places of one peer
PORTS = range(1024, 65536)  # that a peer may have us dial: no system's services
BREATH = 0.1  # seconds

log = logging.getLogger(__name__)

OnOpened = Callable[[PeerId, Flow, bool, Opened], None]


class Dock:
    """Belongs to the loop that calls `open`."""

    def __init__(self, me: PeerId, opened: OnOpened, throttle: Throttle) -> None:
        self._me = me
        self.throttle = throttle
        self._opened = opened
        self._tokens = Tokens()
        self._pool = ThreadPoolExecutor(AT_ONCE, "bulk-handshake")
        self._begun: Counter[str] = Counter()  # handshakes, by host
        self._counting = threading.Lock()
        self._is_closed = False
        self._listeners: list[socket.socket] = []
        self._ports: tuple[int, ...] = ()

    def open(self, listeners: Sequence[socket.socket], ports: Sequence[int]) -> None:
        """Take connections at these sockets, which listen; others reach them at `ports`."""
        self.posts = Posts()
        self._door: Door = new_door()
        self._listeners, self._ports = list(listeners), tuple(ports)
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="bulk-door", daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._is_closed = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # which wakes whoever waits there
            listener.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what peers ask, and what we ask them ---------------------------------------------------------------

    def invitation(self, peer: PeerId, flow: Flow, sends: bool) -> Knock:
        """How `peer` is to knock here; `sends`: it is we who send then."""
        token = self._tokens.give(time.monotonic(), Ticket(peer, flow, sends))
        return Knock(flow, self._ports, self._door.fingerprint, token)

    def answer(self, peer: PeerId, question: MayIKnock) -> Knock:
        """To somebody who wants to send."""
        return self.invitation(peer, question.flow, sends=False)

    async def follow(self, peer: PeerId, hosts: Sequence[str], invited: Knock, sends: bool) -> Knocked:
        """Knock as `invited`, at these hosts; whether it came to a connection."""
        places = [(host, port) for host in hosts for port in invited.ports if port in PORTS][:MAX_TRIED]
        for place in places:
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._pool, _dial, place, invited)
            except TransportError as error:
                log.debug("no bulk socket at %s: %s", place, error)
                continue
            except RuntimeError:  # we are closed
                break
            key = bound(found.key, self._me, peer, invited.flow, listener_sends=not sends)
            self._opened(peer, invited.flow, sends, Opened(found.socket, key))
            return Knocked(True)
        return Knocked(False)

    # -- at our door ----------------------------------------------------------------------------------------

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
            self._let_in(guest, where[0])

    def _let_in(self, guest: socket.socket, host: str) -> None:
        with self._counting:
            is_welcome = self._begun[host] < OF_HOST
            self._begun[host] += is_welcome
        if not is_welcome:
            guest.close()
            return
        try:
            self._pool.submit(self._admit, guest, host)
        except RuntimeError:  # we are closed
            guest.close()

    def _admit(self, guest: socket.socket, host: str) -> None:
        try:
            opened, ticket = admit(guest, self._door, lambda token: self._tokens.redeem(time.monotonic(), token))
        except TransportError as error:
            log.debug("%s is not let in: %s", host, error)
        else:
            key = bound(opened.key, ticket.peer, self._me, ticket.flow, listener_sends=ticket.sends)
            self.posts.post(self._opened, ticket.peer, ticket.flow, ticket.sends, Opened(opened.socket, key))
        finally:
            self._ended(host)

    def _ended(self, host: str) -> None:
        with self._counting:
            self._begun[host] -= 1
            if not self._begun[host]:
                del self._begun[host]


def _dial(place: tuple[str, int], invited: Knock) -> Opened:
    try:
        raw = socket.create_connection(place, DIAL)
    except OSError as error:
        raise TransportError(f"cannot be dialled: {error}") from error
    return knock(raw, invited.fingerprint, invited.token)


PATIENCE = DIAL * MAX_TRIED + LIMIT  # seconds for a peer to follow

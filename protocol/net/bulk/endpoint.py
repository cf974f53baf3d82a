"""The endpoint of bulk sockets, of one node: it accepts those that peers open, and opens those that peers invite us to.

Rules:
- Whoever wants to send asks for a token and dials; if it cannot, it gives a token, and has itself dialled. So one of
  two that can be dialled is enough, whoever sends.
- A peer is dialled only at hosts where it was met; it says no more than the port. Dials that fail count, for each host,
  as all others do, and one peer has us at work on OF_PEER of its invitations at a time, for FOLLOWING seconds each.
- Handshakes block, in a few threads of their own.
- There are so many sockets at most, with a thread each. Beyond that no more come to be, and payloads take streams.
- What comes of it is told in the loop: `opened(peer, whether we send on it, the socket)`. Of an endpoint that is closed
  nothing comes any more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.bulk import Knock, Knocked
from shoal.protocol.net.bulk.acceptor import Acceptor, HandshakePool
from shoal.protocol.net.bulk.handshake import LIMIT, BulkSocket, Ticket, Tokens, knock
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.sealing import connection_key
from shoal.protocol.net.measure.journal import TOO_OFTEN
from shoal.protocol.net.system.descriptors import share
from shoal.protocol.net.system.throttle import Throttle

MOST = 256  # of all peers together: one both ways with 128 of them
OF_FILES = 1 / 4  # the same, as a share of the files that may be open
DIAL = 2.0  # seconds to reach one host
FOLLOWING = 12.0  # seconds for all that is tried because of one invitation
PATIENCE = FOLLOWING + LIMIT  # seconds for a peer to follow ours, and to say so
OF_PEER = 4  # invitations of one peer at a time, both ways
MAX_TRIED = 6  # places of one peer
PORTS = range(1024, 65536)  # that a peer may have us dial: no system's services
LOOK = 0.002  # seconds
PARTING = 1.0  # seconds that `gone` waits for what does not end at once

log = logging.getLogger(__name__)

OnOpened = Callable[[PeerId, bool, BulkSocket], None]


class ConnectionLimit:
    """How many bulk sockets there may be, of all peers together.

    One counts for as long as its thread runs, so nobody has to give it back. Belongs to the loop.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = share(OF_FILES, most)
        self._threads: list[threading.Thread] = []

    @property
    def is_reached(self) -> bool:
        """Whether there may be no more."""
        return self._taken() >= self._most

    @property
    def is_half_reached(self) -> bool:
        """Whether a peer that has one already should be content with it."""
        return 2 * self._taken() >= self._most

    def _taken(self) -> int:
        self._threads = [each for each in self._threads if each.is_alive()]
        return len(self._threads)

    def take(self, thread: threading.Thread) -> None:
        """Count a socket, by the thread that serves it."""
        self._threads.append(thread)

    def join(self, limit: float) -> None:
        """Wait until all threads have ended; each for so many seconds."""
        for each in self._threads:
            each.join(limit)


class Endpoint:
    """Belongs to the loop that calls `open`. `failures` counts dials of each host that fail (peers/dialing.py)."""

    def __init__(self, me: PeerId, opened: OnOpened, throttle: Throttle, failures: Allowances[str]) -> None:
        self._me = me
        self.limit = ConnectionLimit()
        self.throttle = throttle
        self._opened, self._failures = opened, failures
        self._tokens = Tokens()
        self._acceptor = Acceptor(self._tokens, lambda *guest: self.posts.post(self._admitted, *guest))
        self._knocks = HandshakePool(share=OF_PEER)
        self._following: Counter[PeerId] = Counter()
        self._is_closed = False
        self._ports: tuple[int, ...] = ()
        self._outside: tuple[int, ...] = ()  # the same, beyond our router

    def open(self, listeners: Sequence[socket.socket], ports: Sequence[int]) -> None:
        """Take connections at these sockets, which listen; others reach them at `ports`."""
        self.posts = Posts()
        self._ports = tuple(ports)
        self._acceptor.open(listeners)

    def set_mapped_port(self, port: int | None) -> None:
        """A router lets others in at this port, too; None: it does not, or not any more."""
        self._outside = (port,) if port is not None else ()

    def close(self) -> None:
        """Take no more, and knock nowhere."""
        self._is_closed = True
        self._acceptor.close()
        self._knocks.close()

    async def gone(self) -> None:
        """Return when all threads have ended: those of the door, and of sockets, which others have closed."""
        last = threading.Thread(target=self._join, name="bulk-end", daemon=True)  # the loop's pool would keep one
        last.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(PARTING):
                while last.is_alive():
                    await asyncio.sleep(LOOK)

    def _join(self) -> None:
        self._acceptor.join(PARTING)
        self._knocks.join()
        self.limit.join(PARTING)

    # -- what peers ask, and what we ask them ---------------------------------------------------------------

    def invitation(self, peer: PeerId, sends: bool) -> Knock:
        """How `peer` is to knock here; `sends`: it is we who send then."""
        if self.limit.is_reached:
            raise TransportError("no more bulk sockets are to be had here", "full")
        token = self._tokens.give(time.monotonic(), Ticket(peer, sends))
        ports = tuple(dict.fromkeys((*self._ports, *self._outside)))
        return Knock(ports, self._acceptor.fingerprint, token)

    async def follow(self, peer: PeerId, hosts: Sequence[str], invited: Knock, sends: bool) -> Knocked:
        """Knock as `invited`, at these hosts; whether it came to a connection."""
        if self.limit.is_reached or self._following[peer] >= OF_PEER:
            return Knocked(False)
        places = [(host, port) for host in hosts for port in invited.ports if port in PORTS][:MAX_TRIED]
        self._following[peer] += 1
        try:
            async with asyncio.timeout(FOLLOWING):
                return Knocked(await self._knock_somewhere(peer, places, invited, sends))
        except TimeoutError:
            return Knocked(False)
        finally:
            self._following -= Counter([peer])  # which forgets those who have none left

    async def _knock_somewhere(
        self, peer: PeerId, places: Sequence[tuple[str, int]], invited: Knock, sends: bool
    ) -> bool:
        for place in places:
            try:
                found = await self._knock(peer, place, invited)
            except TransportError as error:
                log.debug("no bulk socket at %s: %s", place, error)
                continue
            key = connection_key(found.key, self._me, peer, listener_sends=not sends)
            self._hand_on(peer, sends, BulkSocket(found.socket, key))
            return True
        return False

    async def _knock(self, peer: PeerId, place: tuple[str, int], invited: Knock) -> BulkSocket:
        allowance = self._failures.of(place[0])
        if not allowance.take(asyncio.get_running_loop().time()):
            raise TransportError("dialled in vain too often, wait a little", TOO_OFTEN)
        raw = await _dialled(place)
        knocking = self._knocks.begin(peer, raw, partial(knock, raw, invited.fingerprint, invited.token))
        if knocking is None:
            raise TransportError("too many handshakes at a time")
        found = await _outcome(knocking)
        allowance.give_back()
        return found

    # -- what comes of it -----------------------------------------------------------------------------------

    def _admitted(self, ticket: Ticket, opened: BulkSocket) -> None:
        """Somebody has come to our door with a token."""
        key = connection_key(opened.key, ticket.peer, self._me, listener_sends=ticket.sends)
        self._hand_on(ticket.peer, ticket.sends, BulkSocket(opened.socket, key))

    def _hand_on(self, peer: PeerId, sends: bool, opened: BulkSocket) -> None:
        if self._is_closed or self.limit.is_reached:
            opened.socket.close()
        else:
            self._opened(peer, sends, opened)


async def _dialled(place: tuple[str, int]) -> socket.socket:
    """In the loop: who does not answer costs no thread."""
    try:
        raw = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    except OSError as error:
        raise TransportError(f"cannot be dialled: {error}") from error
    raw.setblocking(False)
    try:
        async with asyncio.timeout(DIAL):
            await asyncio.get_running_loop().sock_connect(raw, place)
    except OSError as error:  # in time or not
        raw.close()
        raise TransportError(f"cannot be dialled: {error}") from error
    except BaseException:  # cancelled
        raw.close()
        raise
    return raw


async def _outcome(knocking: Future[BulkSocket]) -> BulkSocket:
    """Of a handshake; one that succeeds when nobody waits for it any more is for nobody."""
    try:
        return await asyncio.shield(asyncio.wrap_future(knocking))
    except asyncio.CancelledError:
        knocking.add_done_callback(_close)
        raise


def _close(knocking: Future[BulkSocket]) -> None:
    if knocking.exception() is None:
        knocking.result().socket.close()

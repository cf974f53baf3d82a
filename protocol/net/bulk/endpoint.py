"""The node's endpoint for bulk sockets: accepts those that peers open, and opens those that peers invite us to.

Rules:
- A peer that wants to send asks for a token and dials; if that fails, it gives a token and asks to be dialled. So it is
  enough that one of the two can be dialled, whoever sends.
- A peer is dialled only at hosts where it was met; an invitation names only ports. Failed dials count for each host
  like all others (peers/dialing.py), and we follow at most OF_PEER invitations of a peer at a time, FOLLOWING seconds
  each.
- One thread waits at each listening socket, and never for a connected peer: handshakes block, so they run in a pool of
  threads with a bounded queue (`HandshakePool`). One host (IPv4 address, or IPv6 /64 network) gets only a share of it.
  A connection is closed at once if its host has used up that share, if the pool is full, or if its descriptor is one of
  those that are reserved for our own files.
- The number of sockets is bounded, as each has a thread (`ConnectionLimit`). Beyond that payloads take streams.
- `opened(peer, whether we send on it, socket)` is called in the loop for each new socket; not after `close`, which
  does not wait for silent peers.
"""

from __future__ import annotations

import asyncio
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

from shoal.protocol.base.allowance import Allowances
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.bulk import Knock, Knocked
from shoal.protocol.net.bulk.handshake import (
    LIMIT,
    BulkSocket,
    ListenerCertificate,
    Ticket,
    Tokens,
    admit,
    knock,
    new_certificate,
)
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.sealing import connection_key
from shoal.protocol.net.libp2p.inbound_limits import counted_host
from shoal.protocol.net.measure.journal import TOO_OFTEN
from shoal.protocol.net.system.descriptors import is_reserved, share
from shoal.protocol.net.system.throttle import Throttle

MOST = 256  # sockets of all peers together: one in each direction with 128 of them
OF_FILES = 1 / 4  # the same, as a share of the files that may be open
DIAL = 2.0  # seconds for one dial
FOLLOWING = 12.0  # seconds for all attempts that follow one invitation
PATIENCE = FOLLOWING + LIMIT  # seconds for a peer to follow our invitation and to answer
OF_PEER = 4  # invitations of one peer that we follow at a time, for both directions
MAX_TRIED = 6  # pairs of host and port that are dialled for one invitation
PORTS = range(1024, 65536)  # that a peer may make us dial: not those of system services
LOOK = 0.002  # seconds between two looks whether all threads have ended
PARTING = 1.0  # seconds that `wait_closed` waits for threads

AT_ONCE = 16  # handshakes at work
WAITING = 48  # handshakes that wait for a thread
OF_HOST = 8  # handshakes of one host: half of those at work
OF_FILES_HANDSHAKES = 1 / 16  # the same, as a share of the files that may be open; each handshake opens two
RETRY_ACCEPT = 0.1  # seconds

T = TypeVar("T")

log = logging.getLogger(__name__)

OnOpened = Callable[[PeerId, bool, BulkSocket], None]


class ConnectionLimit:
    """The limit of bulk sockets, over all peers.

    A socket counts as long as its thread runs, so nothing has to be given back. Belongs to the loop.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = share(OF_FILES, most)
        self._threads: list[threading.Thread] = []

    @property
    def is_reached(self) -> bool:
        """Whether no more sockets may be opened."""
        return self._taken() >= self._most

    @property
    def is_half_reached(self) -> bool:
        """Whether half of the sockets are in use: then no peer should open a second one."""
        return 2 * self._taken() >= self._most

    def _taken(self) -> int:
        self._threads = [each for each in self._threads if each.is_alive()]
        return len(self._threads)

    def take(self, thread: threading.Thread) -> None:
        """Count a socket, by the thread that serves it."""
        self._threads.append(thread)

    def join(self, limit: float) -> None:
        """Wait until the threads have ended, at most `limit` seconds for each."""
        for each in self._threads:
            each.join(limit)


class HandshakePool:
    """A bounded pool of threads for handshakes, with a bounded share for each other end. Thread-safe."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING, of_one: int = OF_HOST) -> None:
        self._most = share(OF_FILES_HANDSHAKES, at_once + waiting)
        self._of_one = max(1, min(of_one, self._most // 2))
        self._pool = ThreadPoolExecutor(at_once, "bulk-handshake")
        self._lock = threading.Lock()
        self._of: Counter[str] = Counter()  # handshakes of each other end
        self._handles: set[socket.socket] = set()  # duplicates, to shut down by: TLS detaches the originals
        self._is_closed = False

    def begin(self, other: str, raw: socket.socket, work: Callable[[], T]) -> Future[T] | None:
        """Run `work` in the pool, which closes or hands on `raw`; if there is no room, close `raw` and return None."""
        with self._lock:
            has_room = self._of.total() < self._most and self._of[other] < self._of_one and not self._is_closed
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


class Endpoint:
    """Accepts and dials bulk sockets. Belongs to the loop that calls `open`.

    `failures` bounds the failed dials of each host (peers/dialing.py).
    """

    def __init__(self, me: PeerId, opened: OnOpened, throttle: Throttle, failures: Allowances[str]) -> None:
        self._me = me
        self.limit = ConnectionLimit()
        self.throttle = throttle
        self._opened, self._failures = opened, failures
        self._tokens = Tokens()
        self._incoming, self._outgoing = HandshakePool(), HandshakePool(of_one=OF_PEER)
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._following: Counter[PeerId] = Counter()
        self._is_closed = False
        self._ports: tuple[int, ...] = ()
        self._outside: tuple[int, ...] = ()  # the port that our router forwards to ours

    def open(self, listeners: Sequence[socket.socket], ports: Sequence[int]) -> None:
        """Accept connections on these listening sockets, which others reach at `ports`."""
        self.posts = Posts()
        self._ports = tuple(ports)
        self._certificate: ListenerCertificate = new_certificate()
        for listener in listeners:
            waiting = threading.Thread(target=self._listen, args=(listener,), name="bulk-door", daemon=True)
            self._listeners.append(listener)
            self._threads.append(waiting)
            waiting.start()

    def set_mapped_port(self, port: int | None) -> None:
        """Set the port that a router forwards to our bulk port; None if there is none."""
        self._outside = (port,) if port is not None else ()

    def close(self) -> None:
        """Accept and dial nothing more, and break off all handshakes."""
        self._is_closed = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in `accept`
            listener.close()
        self._incoming.close()
        self._outgoing.close()

    async def wait_closed(self) -> None:
        """Return when all threads have ended, those of the sockets included, which must be closed already."""
        last = threading.Thread(target=self._join, name="bulk-end", daemon=True)  # the loop's pool would keep one alive
        last.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(PARTING):
                while last.is_alive():
                    await asyncio.sleep(LOOK)

    def _join(self) -> None:
        for each in self._threads:
            each.join(PARTING)
        self._incoming.join()
        self._outgoing.join()
        self.limit.join(PARTING)

    # -- invitations, theirs and ours -----------------------------------------------------------------------

    def invitation(self, peer: PeerId, sends: bool) -> Knock:
        """An invitation for `peer` to dial us; `sends`: we send on that socket. TransportError at the limit."""
        if self.limit.is_reached:
            raise TransportError("no more bulk sockets are to be had here", "full")
        token = self._tokens.give(time.monotonic(), Ticket(peer, sends))
        ports = tuple(dict.fromkeys((*self._ports, *self._outside)))
        return Knock(ports, self._certificate.fingerprint, token)

    async def follow(self, peer: PeerId, hosts: Sequence[str], invited: Knock, sends: bool) -> Knocked:
        """Follow the invitation of a peer at these hosts; the answer says whether a socket was opened."""
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
            self._following -= Counter([peer])  # this drops zero counts

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
        knocking = self._outgoing.begin(peer, raw, partial(knock, raw, invited.fingerprint, invited.token))
        if knocking is None:
            raise TransportError("too many handshakes at a time")
        found = await _outcome(knocking)
        allowance.give_back()
        return found

    # -- new sockets ----------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                raw, where = listener.accept()
            except OSError as error:  # the peer has hung up, or no descriptor is left: neither lasts
                if self._is_closed:
                    return
                log.debug("nobody can be let in: %s", error)
                time.sleep(RETRY_ACCEPT)
                continue
            self._incoming.begin(counted_host(where[0]), raw, partial(self._admit, raw))

    def _admit(self, raw: socket.socket) -> None:
        try:
            opened, ticket = admit(raw, self._certificate, lambda token: self._tokens.redeem(time.monotonic(), token))
        except TransportError as error:
            log.debug("somebody is not let in: %s", error)
        else:
            self.posts.post(self._admitted, ticket, opened)

    def _admitted(self, ticket: Ticket, opened: BulkSocket) -> None:
        """A peer has dialled us and shown a valid token."""
        key = connection_key(opened.key, ticket.peer, self._me, listener_sends=ticket.sends)
        self._hand_on(ticket.peer, ticket.sends, BulkSocket(opened.socket, key))

    def _hand_on(self, peer: PeerId, sends: bool, opened: BulkSocket) -> None:
        if self._is_closed or self.limit.is_reached:
            opened.socket.close()
        else:
            self._opened(peer, sends, opened)


async def _dialled(place: tuple[str, int]) -> socket.socket:
    """A connected socket, dialled in the loop, so that a silent host occupies no thread; TransportError if it fails."""
    try:
        raw = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    except OSError as error:
        raise TransportError(f"cannot be dialled: {error}") from error
    raw.setblocking(False)
    try:
        async with asyncio.timeout(DIAL):
            await asyncio.get_running_loop().sock_connect(raw, place)
    except OSError as error:  # TimeoutError included
        raw.close()
        raise TransportError(f"cannot be dialled: {error}") from error
    except BaseException:  # cancelled
        raw.close()
        raise
    return raw


async def _outcome(knocking: Future[BulkSocket]) -> BulkSocket:
    """The result of a handshake; if the caller is cancelled, a socket that still comes of it is closed."""
    try:
        return await asyncio.shield(asyncio.wrap_future(knocking))
    except asyncio.CancelledError:
        knocking.add_done_callback(_close)
        raise


def _close(knocking: Future[BulkSocket]) -> None:
    if knocking.exception() is None:
        knocking.result().socket.close()

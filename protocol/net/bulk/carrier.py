"""Carries payloads to one peer: on bulk sockets as soon as there are any, until then on one stream for each flow.

Rules:
- Sockets and streams take from one backlog. So any of them may come or go in the middle of a round: what it had in hand
  goes to the next one.
- A stream gets payloads only if there is no socket and none is expected soon (GRACE), and only a few at a time.
- If the sockets do not fill the path (spare_capacity.py), one more is opened, up to MAX_SOCKETS, and all are judged
  anew. Sockets stay until the connection with the peer ends.
- If no socket can be opened, it is tried again when the path to the peer changes, and now and then. A socket that was
  promised and does not come, or that breaks at once, counts as a failure: a middlebox may let TLS pass and no more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import TRIES, UNWANTED, Backlog, QueuedPayload
from shoal.protocol.net.bulk.endpoint import Endpoint
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.bulk.pacing import SocketPacer
from shoal.protocol.net.bulk.sender import Sender, Wrote
from shoal.protocol.net.bulk.spare_capacity import PathRtt, SpareCapacity
from shoal.protocol.net.transport.streams import Lane, QueuedFrame

GRACE = 1.0  # seconds that payloads wait for a socket before they take a stream
STREAM_PAYLOADS = 2  # payloads that a stream has in hand at most
MAX_SOCKETS = 3  # sockets to one peer
MAX_FRUITLESS = 3  # attempts in a row without a lasting socket, after which delays apply
STABLE_AFTER = 10.0  # seconds after which a socket counts as lasting
RETRY_DELAYS = (20.0, 600.0)  # seconds until the next attempt, at first and at most; doubled with each failure
REFUSED_DELAYS = (1.0, 20.0)  # the same for a peer that does not know yet that we are in a run with it
REFUSED = "run-unknown-there"  # the code of a TransportError that means that

log = logging.getLogger(__name__)

Connect = Callable[[bool], Awaitable[bool]]
PacerOf = Callable[[socket.socket, PathRtt], SocketPacer]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Carrier:
    """The way of payloads to one peer.

    `connect(is_extra)` tries to open a socket, which is passed to `opened`, and returns whether one may come.
    `pacer_of(socket, path)` gives a socket its pacer.
    """

    def __init__(
        self,
        limit: int,
        lanes: Mapping[Flow, Lane],
        connect: Connect,
        spawn: Spawn,
        wrote: Wrote,
        is_up: Callable[[], bool],
        pacer_of: PacerOf,
    ) -> None:
        self._backlog = Backlog(limit)
        self._lanes = lanes
        self._connect, self._spawn, self._wrote, self._is_up = connect, spawn, wrote, is_up
        self._pacer_of = pacer_of
        self._senders: list[Sender] = []
        self._is_closed = False
        self._attempt: asyncio.Task[None] | None = None
        self._path = PathRtt()
        self._widening: asyncio.Task[None] | None = None
        self._widen_delay, self._widen_at = 0.0, 0.0
        self._has_grace = False
        self._fruitless = 0  # attempts
        self._delay, self._try_at = 0.0, 0.0
        self._on_stream = dict.fromkeys(lanes, 0)  # payloads that each stream has in hand
        self.dropped = 0

    @property
    def sockets(self) -> int:
        """How many bulk sockets there are; with none, payloads go by streams."""
        return len(self._senders)

    def put(self, queued: QueuedPayload) -> None:
        """Queue a payload, or drop it if too much waits already."""
        if not self._backlog.put(queued):
            self._lose(queued, TransportError("too much waits for this peer already"))
        elif not self._senders:
            self._go_on()

    def opened(self, opened: BulkSocket, endpoint: Endpoint) -> None:
        """A socket to the peer was opened: send on it."""
        begin = asyncio.get_running_loop().time()
        sender = Sender(
            opened,
            self._backlog,
            SpareCapacity(self._path),
            self._pacer_of(opened.socket, self._path),
            endpoint.throttle.up,
            endpoint.posts,
            self._written,
            lambda: self._ended(sender, begin),
        )
        for each in self._senders:
            each.capacity.judge_anew()
        self._senders.append(sender)
        sender.start()
        endpoint.limit.take(sender.thread)

    def try_anew(self) -> None:
        """The path to the peer has changed: try for a socket without delay."""
        self._forget_failures()
        self._path = PathRtt()
        if len(self._backlog):
            self._go_on()

    def clear(self, reason: TransportError) -> None:
        """The peer is out of reach: drop all queued payloads, and close all sockets and streams."""
        self._forget_failures()
        for sender in self._senders:
            sender.close()
        self._senders.clear()
        for lane in self._lanes.values():
            lane.clear(reason)
        self._drop(reason)

    def close(self, reason: TransportError) -> None:
        """Like `clear`, for good: nothing is begun any more."""
        self._is_closed = True
        self.clear(reason)

    # -- inside ---------------------------------------------------------------------------------------------

    def _forget_failures(self) -> None:
        self._fruitless, self._delay, self._try_at = 0, 0.0, 0.0
        self._widen_delay, self._widen_at = 0.0, 0.0

    def _ended(self, sender: Sender, begin: float) -> None:
        """A sender has ended, as it was closed or broke; in the latter case another socket is tried for at once."""
        if asyncio.get_running_loop().time() - begin >= STABLE_AFTER:
            self._forget_failures()
        if sender in self._senders:
            self._senders.remove(sender)
        if self._is_up() and not self._is_closed:
            self._go_on()
        else:
            self.clear(TransportError("the connection is lost"))

    def _written(self, begin: float, end: float, size: int) -> None:
        self._wrote(begin, end, size)
        if (
            len(self._senders) < MAX_SOCKETS
            and all(each.capacity.has_room for each in self._senders)
            and len(self._backlog)
        ):
            self._widen()

    def _widen(self) -> None:
        """Try for one more socket; the present ones go on whatever comes of it."""
        now = asyncio.get_running_loop().time()
        if self._widening is None and now >= self._widen_at and self._senders and not self._is_closed:
            self._widen_delay = min(RETRY_DELAYS[1], max(RETRY_DELAYS[0], 2 * self._widen_delay))
            self._widen_at = now + self._widen_delay
            self._widening = self._spawn(self._try_wider())

    async def _try_wider(self) -> None:
        log.info("%d bulk sockets do not fill the path: one more is tried for", len(self._senders))
        try:
            await self._connect(True)
        except (TransportError, RemoteError) as error:
            log.debug("no second bulk socket: %s", error)
        finally:
            self._widening = None

    def _go_on(self) -> None:
        if self._senders or self._is_closed or not len(self._backlog):
            return
        now = asyncio.get_running_loop().time()
        if self._attempt is None and now >= self._try_at:
            self._has_grace = True
            self._attempt = self._spawn(self._try())
        if not self._has_grace:
            self._feed()

    async def _try(self) -> None:
        loop = asyncio.get_running_loop()
        grace = loop.call_later(GRACE, self._end_grace)
        has_chance, (first, longest) = False, RETRY_DELAYS
        self._fruitless += 1
        try:
            has_chance = await self._connect(False) and self._fruitless < MAX_FRUITLESS
        except (TransportError, RemoteError) as error:
            log.debug("no bulk socket: %s", error)
            if isinstance(error, TransportError) and error.code == REFUSED:
                self._fruitless, (first, longest) = self._fruitless - 1, REFUSED_DELAYS
        finally:
            grace.cancel()
            self._attempt = None
            self._delay = 0.0 if has_chance else min(longest, max(first, 2 * self._delay))
            self._try_at = loop.time() + (self._delay or GRACE)
            if has_chance:  # a peer that dials us may have done so before it answered
                loop.call_later(GRACE, self._end_grace)
            else:
                loop.call_at(self._try_at, self._go_on)
                self._end_grace()

    def _end_grace(self) -> None:
        self._has_grace = False
        self._go_on()

    def _feed(self) -> None:
        for flow, lane in self._lanes.items():
            while (
                self._on_stream[flow] < STREAM_PAYLOADS
                and not self._senders
                and (queued := self._backlog.take_now(flow)) is not None
            ):
                self._on_stream[flow] += 1
                lane.put(self._as_frame(queued))

    def _as_frame(self, queued: QueuedPayload) -> QueuedFrame:
        def pack() -> list[bytes]:
            if not queued.is_wanted():
                return []
            prefix, head, payload = queued.pack()
            return [prefix + head, bytes(payload)]

        def sent(size: int) -> None:
            self._on_stream[queued.flow] -= 1
            if not queued.was_sent:
                queued.sent(size) if size else queued.lost(UNWANTED)
            self._go_on()

        def lost(reason: TransportError) -> None:
            self._on_stream[queued.flow] -= 1
            queued.tries += 1
            if not self._is_up():
                self._lose(queued, reason)
                self._drop(reason)
                return
            if queued.tries < TRIES:
                self._backlog.put_back([queued])
            else:
                self._lose(queued, reason)
            self._go_on()

        return QueuedFrame(queued.size, pack, sent, lost)

    def _drop(self, reason: TransportError) -> None:
        """Drop all waiting payloads."""
        for queued in self._backlog.clear():
            self._lose(queued, reason)

    def _lose(self, queued: QueuedPayload, reason: TransportError) -> None:
        self.dropped += 1
        if not queued.was_sent:
            queued.lost(reason)

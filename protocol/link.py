"""What goes between us and one peer: a control lane and a bulk lane out, their counterparts in, calls and pings.

Rules:
- Messages and calls travel on control streams; messages whose class says `bulk` on bulk streams, so that no
  payload ever stands before a word.
- A message that is too long is dropped, like any that is lost; a call that is, is our caller's mistake.
- A bad frame or message costs its sender that frame and a line in our log; bad framing costs it the stream.
- A message of a run that we are not in is dropped unread: decoding it would cost us more than sending it cost.
- The peer may have one stream of each protocol: a new one replaces the old. If the old one had not ended, the peer
  has lost a connection that looks alive here, and our own words must not go there any more.
- A peer may keep us busy with its words, and with malformed payloads, for a share of the time (BUSY); beyond that it
  is read more slowly, and its own connection tells it so. So a flood, of signatures to check or of anything else,
  costs its sender most.
- Who leaves our pings unanswered for SILENCE seconds is disconnected: a connection whose other end vanished without
  a word would otherwise look alive for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from shoal.protocol.allowance import Allowance, Allowances
from shoal.protocol.calls import Calls, Serve
from shoal.protocol.clocks import ahead, shown
from shoal.protocol.dialing import Dialing
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.frames import MAX_HEAD, Frame, Kind, frame_head
from shoal.protocol.ids import PeerId, RunId, short
from shoal.protocol.incoming import Incoming
from shoal.protocol.lane import Lane, Parcel
from shoal.protocol.transport import Stream, Transport
from shoal.protocol.wire import MAX_BULK_FRAME, MAX_CONTROL_FRAME, RUN_TAGS, Message, decode, encode

CONTROL = "/shoal/control/1"
BULK = "/shoal/bulk/1"
CONTROL_QUEUE = 8 << 20
SILENCE = 30.0
BUSY = (1.0, 0.2)  # seconds of our time for the words of one peer, in a burst and per second
BUSY_MOST = 0.05  # counted for one word: what it sets off may be work that we owe the run, not the sender
OPEN_TRIES = 2  # a connection may end while we open a stream on it, and another one be there

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """How we are connected with a peer, for people to read."""

    peer: PeerId
    path: str  # of shoal.protocol.paths
    rtt_ms: float | None
    bytes_sent: int
    bytes_received: int
    addresses: tuple[str, ...]
    ahead: float | None = None  # seconds that our clock is ahead of its clock


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a neighbour needs of the network that it belongs to."""

    transport: Transport
    failures: Allowances[str]  # of dials, see dialing.py
    bulk_queue: int
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    complain: Callable[[RemoteError], None]
    count: Callable[[RunId | None, int, int, bool], None]  # (run, bytes sent, bytes received, in bulk)
    takes: Callable[[RunId | None], bool]
    on_message: Callable[[PeerId, RunId | None, Message], None]
    on_call: Serve
    on_left: Callable[[PeerId, RunId, Message, bool], None]


class Neighbour:
    """One peer, and all that goes between us."""

    def __init__(self, peer: PeerId, around: Surroundings) -> None:
        self.peer = peer
        self.dialing = Dialing(peer, around.transport, around.spawn, around.failures)
        self._around = around
        self._control = Lane(CONTROL_QUEUE, lambda: self._open_stream(CONTROL), around.spawn)
        self._bulk = Lane(around.bulk_queue, lambda: self._open_stream(BULK), around.spawn)
        self._calls = Calls(peer, self._put, around.spawn, around.on_call)
        self._incoming: dict[str, Incoming] = {}
        self._too_long: set[str] = set()  # kinds of messages that were dropped for it: we say so once
        self._busy = Allowance(*BUSY)
        self._sent = self._received = 0
        self._rtt: float | None = None
        self._ahead: float | None = None
        self._ping = 0
        self._pinged_at = self._answered_at = 0.0

    @property
    def is_up(self) -> bool:
        """Whether a connection exists."""
        return self.dialing.is_up

    @property
    def dropped(self) -> int:
        """Frames that never left."""
        return self._control.dropped + self._bulk.dropped

    @property
    def has_words_left(self) -> bool:
        """Whether something waits that should leave before we close."""
        return self.is_up and not self._control.is_idle

    def link(self) -> Link:
        """The connection, described."""
        return Link(
            peer=self.peer,
            path=self._around.transport.path(self.peer),
            rtt_ms=None if self._rtt is None else 1000 * self._rtt,
            bytes_sent=self._sent,
            bytes_received=self._received,
            addresses=self._around.transport.remote_addresses(self.peer),
            ahead=self._ahead,
        )

    # -- the connection -------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The first connection with the peer is made, whoever dialled."""
        self.dialing.connected()
        self.forgive()
        self.ping()

    def has_direct(self) -> None:
        """There is a connection without a relay: what follows goes there."""
        self._control.renew()
        self._bulk.renew()

    def disconnected(self) -> None:
        """The last connection with the peer is lost."""
        self.dialing.is_up = False
        self._rtt = None
        reason = TransportError(f"the connection with {short(self.peer)} is lost")
        self._control.clear(reason)
        self._bulk.clear(reason)
        self._calls.lose(reason)

    def ping(self) -> None:
        """Measure the round trip, before all else that waits; give up a peer that does not answer."""
        now = asyncio.get_running_loop().time()
        if now - self._answered_at > SILENCE:
            self._around.spawn(self._give_up())
        self._ping += 1
        self._pinged_at = now
        self._put(Kind.PING, self._ping, b"", urgent=True)

    async def _give_up(self) -> None:
        with suppress(TransportError):  # the host has stopped, and with it the connection
            await self._around.transport.disconnect(self.peer)

    def forgive(self) -> None:
        """Start the silence anew: it was we who did not listen."""
        self._answered_at = asyncio.get_running_loop().time()

    async def _open_stream(self, protocol: str) -> Stream:
        for tries_left in reversed(range(OPEN_TRIES)):
            await self.dialing.reach()
            try:
                own = await self.dialing.open_own_connection(protocol) if protocol == BULK else None
                return own or await self._around.transport.open_stream(self.peer, protocol)
            except TransportError:
                if not tries_left:
                    raise
        raise AssertionError("OPEN_TRIES is positive")

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, run: RunId, message: Message) -> None:
        """Queue a message on the lane of its class."""
        if message.bulk:
            self._put_bulk(run, message)
        else:
            self._put_word(run, message)

    async def call(self, message: Message, timeout: float) -> Message:
        """The peer's answer to `message`."""
        return await self._calls.ask(message, timeout)

    def _put_word(self, run: RunId, message: Message) -> None:
        """What is too long to be sent, perhaps because others filled it, is lost like any other word."""
        body, kind = encode(message), type(message).__name__
        if len(body) <= MAX_CONTROL_FRAME:
            self._put(Kind.MESSAGE, 0, body, run=run)
            return
        self._control.dropped += 1
        if kind not in self._too_long:
            self._too_long.add(kind)
            log.warning("a %s of %d bytes is too long for %s, and not sent", kind, len(body), short(self.peer))

    def _put(
        self,
        kind: Kind,
        number: int,
        body: bytes,
        lost: Callable[[TransportError], None] | None = None,
        run: RunId | None = None,
        urgent: bool = False,
    ) -> None:
        if len(body) > MAX_CONTROL_FRAME:
            raise LocalError(f"a message of {len(body)} bytes is over the limit of {MAX_CONTROL_FRAME}")
        data = frame_head(kind, number, run, len(body)) + body
        parcel = Parcel(len(data), lambda: [data], lambda size: self._count_sent(run, size), lost, is_packed=True)
        self._control.put(parcel, urgent)

    def _put_bulk(self, run: RunId, message: Message) -> None:
        def pack() -> list[bytes]:
            body = encode(message)
            if len(body) > MAX_BULK_FRAME:
                raise LocalError(f"a message of {len(body)} bytes is over the limit of {MAX_BULK_FRAME}")
            return [frame_head(Kind.MESSAGE, 0, run, len(body)), body]

        def sent(size: int) -> None:
            self._count_sent(run, size, bulk=True)
            self._around.on_left(self.peer, run, message, True)

        def lost(reason: TransportError) -> None:
            self._around.on_left(self.peer, run, message, False)

        self._bulk.put(Parcel(MAX_HEAD + _payload_size(message), pack, sent, lost))

    def _count_sent(self, run: RunId | None, size: int, bulk: bool = False) -> None:
        self._sent += size
        self._around.count(run, size, 0, bulk)

    # -- in -------------------------------------------------------------------------------------------------

    def accept(self, protocol: str, stream: Stream) -> None:
        """Read a stream that the peer opened."""
        last = self._incoming.get(protocol)
        if last is not None and not (last.is_over or last.has_ended):
            last.close()
            if protocol == CONTROL:
                self._control.renew()
        limit = MAX_BULK_FRAME if protocol == BULK else MAX_CONTROL_FRAME
        take = partial(self._take, protocol == BULK)
        self._incoming[protocol] = Incoming(stream, limit, self.peer, take, self._around.complain)

    def close(self) -> None:
        """Hear nothing more."""
        for each in self._incoming.values():
            each.close()

    def _take(self, bulk: bool, frame: Frame, size: int) -> float:
        """Act on a frame, and say how long the sender's next one must wait for it."""
        self._received += size
        self._around.count(frame.run, 0, size, bulk)
        begin = time.thread_time()
        if self._receive(frame, bulk) and bulk:
            return 0.0
        spent = min(time.thread_time() - begin, BUSY_MOST)
        return self._busy.owe(asyncio.get_running_loop().time(), spent)

    def _receive(self, frame: Frame, bulk: bool) -> bool:
        """Act on one frame; whatever is wrong with its contents ends here. Whether it was any good."""
        try:
            if frame.kind is Kind.MESSAGE and not self._around.takes(frame.run):
                return False
            if frame.kind is Kind.MESSAGE:
                message = decode(frame.body, self.peer, tags=RUN_TAGS)
                if message.bulk != bulk:
                    raise RemoteError(f"{type(message).__name__} came on the wrong stream", self.peer)
                self._around.on_message(self.peer, frame.run, message)
            elif bulk:
                raise RemoteError(f"{frame.kind.name} came on a bulk stream", self.peer)
            elif frame.kind is Kind.PING:
                self._put(Kind.PONG, frame.call, shown(time.time()), urgent=True)
            elif frame.kind is Kind.PONG:
                self._receive_pong(frame)
            else:
                self._calls.receive(frame)
        except RemoteError as error:
            self._around.complain(error)
            return False
        return True

    def _receive_pong(self, frame: Frame) -> None:
        self.forgive()
        if frame.call == self._ping:
            self._rtt = self._answered_at - self._pinged_at
            self._ahead = ahead(time.time(), self._rtt, frame.body)


def _payload_size(message: Message) -> int:
    """The bytes that a message's payloads hold, without encoding it."""
    values = (getattr(message, field.name) for field in fields(message))  # type: ignore[arg-type]
    return sum(memoryview(each).nbytes for each in values if isinstance(each, bytes | bytearray | memoryview))

"""What goes between us and one peer: words on a control lane out and its counterpart in, calls, pings; and payloads.

Rules:
- Messages and calls travel on control streams; those whose class says `bulk` by carriers of their own (bulk/), so that
  no payload ever stands before a word.
- A message that is too long is dropped, like any that is lost; a call that is, is our caller's mistake.
- A bad frame or message costs its sender that frame and a line in our log; bad framing costs it the stream.
- A message of a run that we are not in is dropped unread: decoding it would cost us more than sending it cost.
- Where the peer has lost a connection that looks alive here, our own words must not go there any more.
- A peer may keep us busy with its words, and with malformed payloads, for a share of the time (BUSY); beyond that it
  is read more slowly, and its own connection tells it so. So a flood, of signatures to check or of anything else,
  costs its sender most.
- Who leaves our pings unanswered for too long (heartbeat.py) is disconnected: a connection whose other end vanished
  without a word would otherwise look alive for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from shoal.protocol.account import Account, Link
from shoal.protocol.allowance import Allowance
from shoal.protocol.arrivals import Arrivals
from shoal.protocol.bulk.flows import PROTOCOLS
from shoal.protocol.bulk.payloads import FLOWS, Payloads, Side
from shoal.protocol.calls import Calls
from shoal.protocol.clocks import ahead, shown
from shoal.protocol.dialing import Dialing
from shoal.protocol.effects import Send
from shoal.protocol.errors import NOT_SPOKEN, LocalError, RemoteError, TransportError
from shoal.protocol.frames import MAX_HEAD, Frame, Kind, decode_frame, frame_head
from shoal.protocol.gauge import Gauge
from shoal.protocol.heartbeat import Heartbeat
from shoal.protocol.ids import PeerId, RunId, short
from shoal.protocol.incoming import Incoming
from shoal.protocol.lane import Lane, Parcel
from shoal.protocol.messages.bulk import Knock, MayIKnock
from shoal.protocol.paths import RELAYED
from shoal.protocol.surroundings import Surroundings
from shoal.protocol.transport import Stream
from shoal.protocol.wire import MAX_CONTROL_FRAME, RUN_TAGS, Message, decode, encode

CONTROL = "/shoal/control/1"
SPOKEN = (CONTROL, *PROTOCOLS.values())  # the protocols of our streams
CONTROL_QUEUE = 8 << 20
BUSY = (1.0, 0.2)  # seconds of our time for the words of one peer, in a burst and per second
BUSY_MOST = 0.05  # counted for one word: what it sets off may be work that we owe the run, not the sender
OPEN_TRIES = 2  # a connection may end while we open a stream on it, and another one be there

log = logging.getLogger(__name__)


class Neighbour:
    """One peer, and all that goes between us."""

    def __init__(self, peer: PeerId, around: Surroundings) -> None:
        self.peer = peer
        self.dialing = Dialing(peer, around.transport, around.spawn, around.failures, around.on_stranger)
        self.gauge = Gauge(partial(around.line_to, peer))
        self._around = around
        self._control = Lane(CONTROL_QUEUE, partial(self._open_stream, CONTROL), around.spawn)
        self._control.has_moved = self._measure_anew
        self._calls = Calls(peer, self._put, around.spawn, self._serve)
        self.payloads = Payloads(self._side(), around, around.dock)
        self._arrivals = Arrivals(self._read, self._was_lost)
        self._too_long: set[str] = set()  # kinds of messages that were dropped for it: we say so once
        self._busy = Allowance(*BUSY)
        self._heart = Heartbeat()
        self._ahead: float | None = None

    @property
    def is_up(self) -> bool:
        """Whether a connection exists."""
        return self.dialing.is_up

    @property
    def dropped(self) -> int:
        """Frames that never left."""
        return self._control.dropped + self.payloads.dropped

    @property
    def has_words_left(self) -> bool:
        """Whether something waits that should leave before we close."""
        return self.is_up and not self._control.is_idle

    def link(self) -> Link:
        """The connection, described."""
        return Link(
            peer=self.peer,
            path=self._around.transport.path(self.peer),
            rtt_ms=None if self.gauge.rtt is None else 1000 * self.gauge.rtt,
            bytes_sent=self.gauge.sent,
            bytes_received=self.gauge.received,
            addresses=self._around.transport.remote_addresses(self.peer),
            ahead=self._ahead,
            sockets=self.payloads.sockets,
            came_to=self._around.transport.came_to(self.peer),
        )

    def account(self) -> Account:
        """How the peer is reached, or not, and why."""
        return self._around.transport.account(self.peer, self.gauge, self.dialing.addresses)

    # -- the connection -------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The first connection with the peer is made, whoever dialled."""
        self.dialing.connected()
        self._heart.begin(_now())
        self._ping()
        self.payloads.connected()

    def path_changed(self) -> None:
        """What follows goes by a relay from now on, or, which is better, not any more."""
        if self._around.transport.path(self.peer) != RELAYED:
            self._control.move()
        self.payloads.path_changed()
        self._measure_anew()

    def _measure_anew(self) -> None:
        self.gauge.anew()
        self._heart.settle()
        self._ping()

    def disconnected(self, why: str) -> None:
        """The last connection with the peer is lost."""
        self.dialing.is_up = False
        self.gauge.anew()
        reason = TransportError(f"the connection with {short(self.peer)} is lost: {why}")
        self._control.clear(reason)
        self.payloads.disconnected(reason)
        self._calls.lose(reason)

    def look(self, anew: bool = False) -> None:
        """Ping, if it is time to, or wanted `anew`; give up a peer that does not answer."""
        now = _now()
        if self._heart.is_silent(now):
            self._around.spawn(self._give_up())
        if anew or self._heart.is_due(now):
            self._ping()

    def _ping(self) -> None:
        """Before all else that waits."""
        self._put(Kind.PING, self._heart.ping(_now()), b"", self._unheard, urgent=True)

    def _unheard(self, reason: TransportError) -> None:
        """Who says that it does not speak with us is there: another implementation, which we are a relay for."""
        if reason.code == NOT_SPOKEN:
            self.forgive()

    async def _give_up(self) -> None:
        with suppress(TransportError):  # the host has stopped, and with it the connection
            await self._around.transport.disconnect(self.peer, self._heart.complaint)

    def forgive(self) -> None:
        """Start the silence anew: it was we who did not listen."""
        self._heart.forgive(_now())

    async def _open_stream(self, protocol: str, may_connect: bool) -> Stream:
        for tries_left in reversed(range(OPEN_TRIES)):
            if may_connect:
                await self.dialing.reach()
            elif not self.is_up:
                raise TransportError(f"there is no connection with {short(self.peer)} any more")
            try:
                own = await self.dialing.open_own_connection(protocol) if protocol in FLOWS else None
                return own or await self._around.transport.open_stream(self.peer, protocol)
            except TransportError as error:
                if not tries_left or error.code == NOT_SPOKEN:
                    raise
        raise AssertionError("OPEN_TRIES is positive")

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, run: RunId, send: Send) -> None:
        """Queue a message on the lane of its class."""
        if send.message.bulk:
            self.payloads.send(run, send)
        else:
            self._put_word(run, send.message)

    async def call(self, message: Message, timeout: float) -> Message:
        """The peer's answer to `message`."""
        return await self._calls.ask(message, timeout)

    def _serve(self, peer: PeerId, question: Message) -> Message | Awaitable[Message]:
        if isinstance(question, MayIKnock | Knock):
            return self.payloads.serve(question)
        return self._around.on_call(peer, question)

    def _side(self) -> Side:
        """What payloads need of us."""
        return Side(
            peer=self.peer,
            gauge=self.gauge,
            reach=self.dialing.reach,
            call=self.call,
            is_up=lambda: self.is_up,
            open_stream=self._open_stream,
            hosts=lambda: self.dialing.hosts(self._around.transport.remote_addresses(self.peer)),
            heard=lambda: self._heart.heard(_now()),
            may_be_direct=lambda: self._around.transport.path(self.peer) != RELAYED,
        )

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
        if not urgent:
            self._heart.said()
        data = frame_head(kind, number, run, len(body)) + body
        parcel = Parcel(len(data), lambda: [data], lambda size: self._count_sent(run, size), lost, is_packed=True)
        self._control.put(parcel, urgent)

    def _count_sent(self, run: RunId | None, size: int) -> None:
        self.gauge.sent += size
        self._around.count(run, size, 0, None)

    # -- in -------------------------------------------------------------------------------------------------

    def accept(self, protocol: str, stream: Stream) -> None:
        """Read a stream that the peer opened."""
        self._arrivals.accept(protocol, stream)

    def _read(self, protocol: str, stream: Stream) -> Incoming[Any]:
        if protocol in FLOWS:
            return self.payloads.read(protocol, stream)
        take, complain = self._take, self._around.complain
        return Incoming(stream, MAX_CONTROL_FRAME + MAX_HEAD, self.peer, decode_frame, take, complain, self.gauge.came)

    def _was_lost(self, protocol: str) -> None:
        if protocol == CONTROL:
            self._control.renew()

    def close(self) -> None:
        """Hear nothing more."""
        self._arrivals.close()
        self.payloads.close()

    def _take(self, frame: Frame, size: int) -> float:
        """Act on a frame, and say how long the sender's next one must wait for it."""
        self.gauge.received += size
        self._heart.heard(_now())
        self._around.count(frame.run, 0, size, None)
        begin = time.thread_time()
        self._receive(frame)
        spent = min(time.thread_time() - begin, BUSY_MOST)
        return self._busy.owe(_now(), spent)

    def _receive(self, frame: Frame) -> None:
        """Act on one frame; whatever is wrong with its contents ends here."""
        try:
            if frame.kind is Kind.MESSAGE and not self._around.takes(frame.run):
                return
            if frame.kind is Kind.MESSAGE:
                message = decode(frame.body, self.peer, tags=RUN_TAGS)
                if message.bulk:
                    raise RemoteError(f"{type(message).__name__} came on the wrong stream", self.peer)
                self._around.on_message(self.peer, frame.run, message)
            elif frame.kind is Kind.PING:
                self._put(Kind.PONG, frame.call, shown(time.time()), urgent=True)
            elif frame.kind is Kind.PONG:
                self._receive_pong(frame)
            else:
                self._calls.receive(frame)
        except RemoteError as error:
            self._around.complain(error)

    def _receive_pong(self, frame: Frame) -> None:
        trip = self._heart.answered(_now(), frame.call)
        if trip is not None:
            self.gauge.trip(trip)
            self._ahead = ahead(time.time(), trip, frame.body)


def _now() -> float:
    return asyncio.get_running_loop().time()

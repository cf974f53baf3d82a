"""One peer, and all traffic between us: messages, calls and pings on control streams, and payloads.

Rules:
- Messages and calls travel on control streams; messages of a class with `bulk` are payloads and travel on sockets or
  streams of their own (payloads.py), so that no message waits behind a payload.
- A message that is too long is dropped, as if it was lost; for a call that is too long, the caller gets a LocalError.
- A bad frame or message costs its sender that frame and a line in our log; bad framing costs it the stream.
- A message of a run that we are not in is dropped undecoded: decoding would cost us more than it cost to send.
- If the peer has lost a connection that looks alive here, our own messages are not sent there any more.
- A call fails at once if the stream of its question or that of its answer is lost, though other connections exist.
- A peer may use a share of our time (BUSY) for its messages and malformed payloads; beyond that it is read more slowly,
  which its connection makes it feel. So a flood, of signatures to check or of anything else, costs its sender most.
- A peer that does not answer our pings for too long (heartbeat.py) is disconnected: a connection whose other end has
  vanished would otherwise look alive for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from shoal.protocol.base.allowance import Allowance
from shoal.protocol.base.errors import LOST, NOT_SPOKEN, LocalError, RemoteError, TransportError
from shoal.protocol.base.frames import MAX_HEAD, Frame, Kind, decode_frame, frame_head
from shoal.protocol.base.ids import PeerId, RunId, short
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, RUN_TAGS, Message, decode, encode
from shoal.protocol.messages.bulk import Knock, MayIKnock
from shoal.protocol.net.bulk.backlog import LatePayload
from shoal.protocol.net.measure.heartbeat import Heartbeat, clock_ahead, clock_for_pong
from shoal.protocol.net.measure.link import Link, LinkReport
from shoal.protocol.net.measure.rates import Gauge
from shoal.protocol.net.peers.calls import Calls
from shoal.protocol.net.peers.dialing import Dialing
from shoal.protocol.net.peers.payloads import FLOWS, Payloads
from shoal.protocol.net.peers.shared import MAX_PEERS, Shared
from shoal.protocol.net.transport.streams import FrameReader, IncomingStreams, Lane, QueuedFrame
from shoal.protocol.net.transport.transport import Stream

CONTROL = "/shoal/control/1"
STREAM_PROTOCOLS = (CONTROL, *FLOWS)  # of our streams
CONTROL_QUEUE = 8 << 20  # bytes
BUSY = (1.0, 0.2)  # seconds of our processor time for the messages of one peer, in a burst and per second
BUSY_MOST = 0.05  # seconds counted for one message, as the work that it triggers may be for the run, not the sender

log = logging.getLogger(__name__)


class Peer:
    """One peer of a network; `shared` is what all of them have in common."""

    def __init__(self, peer: PeerId, shared: Shared) -> None:
        self.peer = peer
        self._shared, self._transport = shared, shared.transport
        self.dialing = Dialing(peer, shared.transport, shared.spawn, shared.failures, self._note_stranger)
        self.gauge = Gauge(partial(shared.line_to, peer))
        self._heart = Heartbeat()
        self._control = Lane(
            CONTROL_QUEUE,
            self._open_control,
            shared.spawn,
            has_moved=self._measure_anew,
            has_broken=lambda: self._fail_calls("its stream broke off"),
        )
        self._calls = Calls(peer, self._put, shared.spawn, self._serve)
        self.payloads = Payloads(peer, shared, self.dialing, self.gauge, self.call, self._note_heard)
        self._arrivals = IncomingStreams(self._read, self._was_lost)
        self._too_long: set[str] = set()  # kinds of messages that were dropped as too long: each is logged once
        self._busy = Allowance(*BUSY)
        self._ahead: float | None = None  # seconds that our clock is ahead of the peer's

    @property
    def is_up(self) -> bool:
        """Whether a connection exists."""
        return self.dialing.is_up

    @property
    def dropped(self) -> int:
        """Frames that were dropped unsent."""
        return self._control.dropped + self.payloads.dropped

    @property
    def has_unsent(self) -> bool:
        """Whether control frames wait that should be written before we close."""
        return self.is_up and not self._control.is_idle

    def link(self) -> Link:
        """The link to the peer, for people to read."""
        return Link(
            peer=self.peer,
            path=self._transport.path(self.peer),
            rtt_ms=None if self.gauge.rtt is None else 1000 * self.gauge.rtt,
            bytes_sent=self.gauge.sent,
            bytes_received=self.gauge.received,
            addresses=self._transport.remote_addresses(self.peer),
            ahead=self._ahead,
            sockets=self.payloads.sockets,
            came_to=self._transport.came_to(self.peer),
        )

    def link_report(self) -> LinkReport:
        """How the peer is reached, or not, and why."""
        return self._transport.link_report(self.peer, self.gauge, self.dialing.addresses)

    # -- the connection -------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The first connection with the peer is made, by either side."""
        self.dialing.connected()
        self._heart.begin(_now())
        self._ping()
        self.payloads.connected()

    def path_changed(self) -> None:
        """The peer is reached by a relay from now on, or not any more."""
        if self.dialing.is_direct:
            self._control.move()
        self.payloads.path_changed()
        self._measure_anew()

    def _measure_anew(self) -> None:
        self.gauge.reset()
        self._heart.settle()
        self._ping()

    def disconnected(self, why: str) -> None:
        """The last connection with the peer is lost."""
        self.dialing.is_up = False
        self.gauge.reset()
        reason = TransportError(f"the connection with {short(self.peer)} is lost: {why}", LOST)
        self._control.clear(reason)
        self.payloads.disconnected(reason)
        self._calls.lose(reason)

    def lost_one(self, why: str) -> None:
        """One of several connections with the peer is lost, and maybe questions or answers that were on their way."""
        if self._control.is_broken or self._arrivals.is_broken(CONTROL):
            self._fail_calls(why)

    def _fail_calls(self, why: str) -> None:
        self._calls.lose_written(TransportError(f"a connection with {short(self.peer)} is lost: {why}", LOST))

    def check(self, ping_now: bool = False) -> None:
        """Ping if it is time to, or if `ping_now`; disconnect a peer that does not answer."""
        now = _now()
        if self._heart.is_silent(now):
            self._shared.spawn(self._give_up())
        if ping_now or self._heart.is_due(now):
            self._ping()

    def _ping(self) -> None:
        """Send a ping, ahead of all queued frames."""
        self._put(Kind.PING, self._heart.ping(_now()), b"", self._unheard, urgent=True)

    def _unheard(self, reason: TransportError) -> None:
        """A ping could not be sent; but a peer that does not speak our protocol, as we are only its relay, is alive."""
        if reason.code == NOT_SPOKEN:
            self.forgive()

    async def _give_up(self) -> None:
        with suppress(TransportError):  # the host has stopped, and with it the connection
            await self._transport.disconnect(self.peer, self._heart.complaint)

    def doubt(self) -> None:
        """Others say that the peer is gone: wait less long for it to answer."""
        self._heart.doubt()

    def forgive(self) -> None:
        """Forget the peer's silence, as it was we who did not listen."""
        self._heart.forgive(_now())

    async def _open_control(self, may_connect: bool) -> Stream:
        return await self.dialing.open_stream(CONTROL, may_connect)

    def _note_stranger(self, address: str) -> None:
        self._shared.tell(self._shared.handlers.on_stranger, address)

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, run: RunId, message: Message, late: LatePayload | None = None) -> None:
        """Queue a message for the peer; one with a payload, that of `late` if it is given, goes among the payloads."""
        if message.bulk:
            self.payloads.send(run, message, late)
        else:
            self._put_message(run, message)

    async def call(self, message: Message, timeout: float) -> Message:
        """The peer's answer to `message`."""
        return await self._calls.ask(message, timeout)

    def _serve(self, peer: PeerId, question: Message) -> Message | Awaitable[Message]:
        if isinstance(question, MayIKnock | Knock):
            return self.payloads.serve(question)
        return self._shared.handlers.on_call(peer, question)

    def _put_message(self, run: RunId, message: Message) -> None:
        """Queue a message; one that is too long, perhaps by data of others in it, is dropped."""
        body, kind = encode(message), type(message).__name__
        if len(body) <= MAX_CONTROL_FRAME:
            self._put(Kind.MESSAGE, 0, body, run=run)
            return
        self._control.dropped += 1
        if kind not in self._too_long:
            self._too_long.add(kind)
            log.warning(
                "a %s of %d bytes is too long for %s, and not sent",
                kind,
                len(body),
                short(self.peer),
                extra={"code": "message-too-long"},
            )

    def _put(
        self,
        kind: Kind,
        number: int,
        body: bytes,
        lost: Callable[[TransportError], None] | None = None,
        sent: Callable[[], None] | None = None,
        run: RunId | None = None,
        urgent: bool = False,
    ) -> None:
        if len(body) > MAX_CONTROL_FRAME:
            raise LocalError(
                f"a message of {len(body)} bytes is over the limit of {MAX_CONTROL_FRAME}", code="message-too-long"
            )
        if not urgent:
            self._heart.said()
        data = frame_head(kind, number, run, len(body)) + body

        def count(size: int) -> None:
            self._count_sent(run, size)
            if sent is not None:
                sent()

        frame = QueuedFrame(len(data), lambda: [data], count, lost, is_packed=True)
        self._control.put(frame, urgent)

    def _count_sent(self, run: RunId | None, size: int) -> None:
        self.gauge.sent += size
        self._shared.count(run, size, 0, None)

    # -- in -------------------------------------------------------------------------------------------------

    def accept(self, protocol: str, stream: Stream) -> None:
        """Read a stream that the peer opened."""
        self._arrivals.accept(protocol, stream)

    def _read(self, protocol: str, stream: Stream) -> FrameReader[Any]:
        if protocol in FLOWS:
            return self.payloads.read(protocol, stream)
        take, complain = self._take, self._shared.complain
        return FrameReader(
            stream, MAX_CONTROL_FRAME + MAX_HEAD, self.peer, decode_frame, take, complain, self.gauge.came
        )

    def _was_lost(self, protocol: str) -> None:
        if protocol == CONTROL:
            self._control.renew()
            self._fail_calls("the peer has lost it unnoticed by us")

    def close(self) -> None:
        """Read nothing more."""
        self._arrivals.close()
        self.payloads.close()

    def _take(self, frame: Frame, size: int) -> float:
        """Handle a frame; returns how many seconds the sender's next one has to wait."""
        self.gauge.received += size
        self._note_heard()
        self._shared.count(frame.run, 0, size, None)
        begin = time.thread_time()
        self._receive(frame)
        spent = min(time.thread_time() - begin, BUSY_MOST)
        return self._busy.owe(_now(), spent)

    def _note_heard(self) -> None:
        self._heart.heard(_now())

    def _receive(self, frame: Frame) -> None:
        """Handle one frame; errors in its contents are logged here."""
        try:
            if frame.kind is Kind.MESSAGE and not self._shared.handlers.takes(frame.run):
                return
            if frame.kind is Kind.MESSAGE:
                message = decode(frame.body, self.peer, tags=RUN_TAGS)
                if message.bulk:
                    raise RemoteError(f"{type(message).__name__} came on the wrong stream", self.peer)
                self._shared.tell(self._shared.handlers.on_message, self.peer, frame.run, message)
            elif frame.kind is Kind.PING:
                self._put(Kind.PONG, frame.call, clock_for_pong(time.time()), urgent=True)
            elif frame.kind is Kind.PONG:
                self._receive_pong(frame)
            else:
                self._calls.receive(frame)
        except RemoteError as error:
            self._shared.complain(error)

    def _receive_pong(self, frame: Frame) -> None:
        trip = self._heart.answered(_now(), frame.call)
        if trip is not None:
            self.gauge.trip(trip)
            self._ahead = clock_ahead(time.time(), trip, frame.body)


class Peers:
    """The peers that a network knows, by PeerID: at most MAX_PEERS, and none is forgotten while it is connected."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._known: OrderedDict[PeerId, Peer] = OrderedDict()

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._known.values()))

    def known(self, name: PeerId) -> Peer | None:
        """The peer with this PeerID, if we know it."""
        return self._known.get(name)

    def of(self, name: PeerId) -> Peer:
        """The peer with this PeerID, which we know from now on."""
        if name not in self._known:
            self._known[name] = Peer(name, self._shared)
            self._forget_strangers()
        self._known.move_to_end(name)
        return self._known[name]

    def forget(self, name: PeerId) -> None:
        """Forget a peer."""
        del self._known[name]

    def _forget_strangers(self) -> None:
        """At the limit, forget the unconnected peer that was not used for longest."""
        if len(self._known) > MAX_PEERS:
            oldest = next((each.peer for each in self._known.values() if not each.is_up), None)
            if oldest is not None:
                del self._known[oldest]


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The payloads between us and one peer: outgoing by a carrier, incoming by bulk sockets and streams.

Rules:
- The message of a payload is checked like any other: a bad one is dropped, and its sender is not read for a moment.
- A peer can make us hold no more contributions than it has credit for, and as many by streams (flow_control.py).
- A payload that is sent again on another socket may arrive twice; the protocols above tolerate that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.paths import DIRECT, RELAYED
from shoal.protocol.base.wire import MAX_BULK_FRAME, Message, Payload
from shoal.protocol.messages.bulk import Flow, Knock, Knocked, MayIKnock
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.bulk import framing
from shoal.protocol.net.bulk.backlog import LatePayload, Packed, QueuedPayload
from shoal.protocol.net.bulk.carrier import MAX_SOCKETS, REFUSED, Carrier
from shoal.protocol.net.bulk.endpoint import PATIENCE
from shoal.protocol.net.bulk.flow_control import SHARED, Credit, CreditPool, MemoryAccount
from shoal.protocol.net.bulk.framing import PROTOCOLS, flow_of
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.bulk.receiver import REST, Receiver
from shoal.protocol.net.measure.rates import Gauge
from shoal.protocol.net.peers.dialing import Dialing
from shoal.protocol.net.peers.shared import Shared
from shoal.protocol.net.transport.streams import FrameReader, Lane
from shoal.protocol.net.transport.transport import Stream
from shoal.protocol.tensors.memory import MEMORY

MOST_SOCKETS = 2 * MAX_SOCKETS  # that we read from one peer: some may have died unnoticed, and have successors
FLOWS = {protocol: flow for flow, protocol in PROTOCOLS.items()}

Call = Callable[[Message, float], Awaitable[Message]]


class Payloads:
    """The payloads of one peer in both directions. `call` asks the peer; `heard` is called when something came."""

    def __init__(
        self,
        peer: PeerId,
        shared: Shared,
        dialing: Dialing,
        gauge: Gauge,
        call: Call,
        heard: Callable[[], None],
    ) -> None:
        self._peer, self._shared, self._dialing = peer, shared, dialing
        self._gauge, self._call, self._heard = gauge, call, heard
        self._endpoint = shared.endpoint
        self._streams = {flow: self._stream(flow) for flow in Flow}
        self._carrier = Carrier(
            shared.bulk_queue,
            self._streams,
            self._connect,
            shared.spawn,
            gauge.wrote,
            lambda: dialing.is_up,
            partial(shared.pacer_of, peer),
        )
        self._contributions = MemoryAccount(self._returned)
        self._pool = CreditPool()
        self._is_credit_due = False
        self._receivers: list[Receiver] = []
        self._is_closed = False

    @property
    def dropped(self) -> int:
        """Payloads that were dropped unsent."""
        return self._carrier.dropped

    @property
    def sockets(self) -> int:
        """The number of bulk sockets that we send on; with none, payloads go by streams."""
        return self._carrier.sockets

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, run: RunId, message: Message, late: LatePayload | None = None) -> None:
        """Queue a message with its payload, or with that which `late` makes when its turn comes."""
        flow, made = flow_of(message), message

        def pack() -> Packed:
            nonlocal made
            if late is not None and made is message:
                made = replace(message, payload=late.make())  # type: ignore[type-var]
            payload: Payload = made.payload  # type: ignore[attr-defined]
            head = framing.packed_head(run, made)
            return framing.prefix(len(head), len(payload), flow), head, payload

        def sent(size: int) -> None:
            self._count_bytes(run, size, 0, flow)
            self._shared.tell(self._shared.handlers.on_payload_done, self._peer, run, made, True)

        def lost(reason: TransportError) -> None:
            self._shared.tell(self._shared.handlers.on_payload_done, self._peer, run, made, False)

        held, is_wanted = (0, late.is_wanted) if late is not None else (len(made.payload), lambda: True)  # type: ignore[attr-defined]
        self._carrier.put(QueuedPayload(flow, held, pack, sent, lost, is_wanted))

    def opened(self, sends: bool, opened: BulkSocket) -> None:
        """A bulk socket with the peer was opened; `sends`: we send on it."""
        if self._is_closed or not self._dialing.is_up or (not sends and len(self._receivers) >= MOST_SOCKETS):
            opened.socket.close()
        elif sends:
            self._carrier.opened(opened, self._endpoint)
        else:
            self._receive(opened)

    def connected(self) -> None:
        """The first connection with the peer is made: send what waits."""
        self._carrier.try_anew()

    def path_changed(self) -> None:
        """The peer is reached by a relay from now on, or not any more."""
        if self._dialing.is_direct:
            for stream in self._streams.values():
                stream.move()
            self._carrier.try_anew()

    def disconnected(self, reason: TransportError) -> None:
        """The last connection with the peer is lost: close all bulk sockets."""
        self._carrier.clear(reason)
        self._close_receivers()

    def close(self) -> None:
        """Send and receive nothing more."""
        self._is_closed = True
        self._carrier.close(TransportError("the network is closed"))
        self._close_receivers()

    # -- negotiating bulk sockets ---------------------------------------------------------------------------

    async def serve(self, question: MayIKnock | Knock) -> Message:
        """Answer a peer that wants to send; a peer that shares no run with us is refused."""
        if not self._shared.handlers.shares_run(self._peer):
            return Refused("we know of no run that we are in together")
        if isinstance(question, MayIKnock):
            return self._endpoint.invitation(self._peer, sends=False)
        return await self._endpoint.follow(self._peer, self._dialing.hosts(), question, sends=False)

    async def _connect(self, is_extra: bool) -> bool:
        """Get a socket to send on: dial, or be dialled; whether one has come or is coming.

        An extra one is opened only while less than half of the node's sockets are in use.
        """
        await self._dialing.reach()
        limit = self._endpoint.limit
        if not self._dialing.is_direct or (limit.is_half_reached if is_extra else limit.is_reached):
            return False
        invited = await self._ask(MayIKnock())
        if isinstance(invited, Knock):
            came = await self._endpoint.follow(self._peer, self._dialing.hosts(), invited, sends=True)
            if came.came:
                return True
        answer = await self._ask(self._endpoint.invitation(self._peer, sends=True))
        return isinstance(answer, Knocked) and answer.came

    async def _ask(self, question: MayIKnock | Knock) -> Message:
        answer = await self._call(question, PATIENCE)
        if isinstance(answer, Refused):
            raise TransportError(answer.reason, REFUSED)
        return answer

    # -- in -------------------------------------------------------------------------------------------------

    def read(self, protocol: str, stream: Stream) -> FrameReader[framing.Frame]:
        """Read a stream of payloads."""
        flow, peer = FLOWS[protocol], self._peer
        return FrameReader(
            stream,
            MAX_BULK_FRAME + framing.MAX_HEAD,
            peer,
            framing.frame,
            partial(self._take, flow, stream.is_relayed),
            self._shared.complain,
            self._gauge.came,
            is_full=lambda: flow is Flow.SCATTER and self._contributions.held >= SHARED,
        )

    def _take(self, flow: Flow, is_relayed: bool, frame: framing.Frame, size: int) -> float:
        """Take a frame of a stream; its payload is copied to memory of its own."""
        self._note(frame.run, size, self._path(is_relayed))
        if not self._shared.handlers.takes(frame.run):
            return 0.0
        lend = self._contributions.lend if flow is Flow.SCATTER else MEMORY.lend
        slot = lend(len(frame.payload))
        slot[:] = frame.payload
        try:
            message = framing.unpacked(frame.head, slot, flow, self._peer)
        except RemoteError as error:
            self._shared.complain(error)
            return REST
        self._shared.tell(self._shared.handlers.on_message, self._peer, frame.run, message)
        return 0.0

    def _receive(self, opened: BulkSocket) -> None:
        """Receive on a bulk socket."""

        def came(run: RunId, message: Message | None, begin: float, end: float, size: int) -> None:
            self._gauge.came(begin, end, size)
            self._note(run, size, DIRECT)
            if message is not None:
                self._shared.tell(self._shared.handlers.on_message, self._peer, run, message)

        def ended() -> None:
            self._pool.close(receiver.credit)
            if receiver in self._receivers:
                self._receivers.remove(receiver)
            self._give_credit()  # its share goes to the other sockets

        endpoint, shared = self._endpoint, self._shared
        receiver = Receiver(
            opened,
            self._peer,
            self._contributions,
            Credit(),
            endpoint.throttle.down,
            endpoint.posts,
            self._shared.handlers.takes,
            shared.complain,
            came,
            ended,
        )
        receiver.start()
        self._receivers.append(receiver)
        self._pool.open(receiver.credit)
        endpoint.limit.take(receiver.thread)
        self._give_credit()

    def _returned(self) -> None:
        """Memory of contributions was given back; called in any thread."""
        if not self._is_credit_due:
            self._is_credit_due = True
            self._endpoint.posts.post(self._give_credit)

    def _give_credit(self) -> None:
        self._is_credit_due = False  # first, so that memory given back from now on brings us here again
        grown = self._pool.share_out(self._contributions.held)
        for each in list(self._receivers):
            if each.credit in grown:
                each.report()

    def _note(self, run: RunId, size: int, path: str) -> None:
        self._gauge.received += size
        self._heard()
        self._shared.count(run, 0, size, path)

    # -- inside ---------------------------------------------------------------------------------------------

    def _stream(self, flow: Flow) -> Lane:
        async def open_stream(may_connect: bool) -> Stream:
            return await self._dialing.open_stream(PROTOCOLS[flow], may_connect, own_connection=True)

        return Lane(2 * MAX_BULK_FRAME, open_stream, self._shared.spawn, self._gauge.wrote)

    def _close_receivers(self) -> None:
        for each in self._receivers:
            each.close()
        self._receivers.clear()

    def _count_bytes(self, run: RunId, sent: int, received: int, flow: Flow) -> None:
        path = DIRECT if self.sockets else self._path(self._streams[flow].is_relayed)
        self._gauge.sent += sent
        self._shared.count(run, sent, received, path)

    def _path(self, is_relayed: bool) -> str:
        """The path of a stream; while a peer moves, one stream may be relayed and another direct."""
        path = self._shared.transport.path(self._peer)
        return RELAYED if is_relayed else DIRECT if path == RELAYED else path

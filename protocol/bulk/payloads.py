"""The payloads between us and one peer: a carrier out, and what comes in, by sockets and by streams.

Rules:
- What a payload's message says is judged like any other word: a bad one is lost, and its sender is not read for a rest.
- Nobody makes us hold more contributions than it has credit for, and as many by streams (credit.py).
- What is sent again over another socket may come twice; the protocols above take that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from shoal.protocol import lane as streams
from shoal.protocol.bulk import framing
from shoal.protocol.bulk.backlog import Packed, Parcel
from shoal.protocol.bulk.carrier import MOST, REFUSED, Carrier
from shoal.protocol.bulk.credit import SHARED, Credit, Pool
from shoal.protocol.bulk.dock import PATIENCE, Dock
from shoal.protocol.bulk.flows import PROTOCOLS, flow_of
from shoal.protocol.bulk.handshake import Opened
from shoal.protocol.bulk.receiver import REST, Receiver
from shoal.protocol.bulk.tenants import Tenant
from shoal.protocol.effects import Send
from shoal.protocol.errors import RemoteError, TransportError
from shoal.protocol.gauge import Gauge
from shoal.protocol.ids import PeerId, RunId
from shoal.protocol.incoming import Incoming
from shoal.protocol.memory import MEMORY
from shoal.protocol.messages.bulk import Flow, Knock, Knocked, MayIKnock
from shoal.protocol.messages.node import Refused
from shoal.protocol.paths import DIRECT, RELAYED
from shoal.protocol.surroundings import Surroundings
from shoal.protocol.transport import Stream
from shoal.protocol.wire import MAX_BULK_FRAME, Message, Payload

MOST_SOCKETS = 2 * MOST  # that a peer may have us read: those that died unheard, and their successors
FLOWS = {protocol: flow for flow, protocol in PROTOCOLS.items()}

Call = Callable[[Message, float], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of the peer elsewhere."""

    peer: PeerId
    gauge: Gauge
    reach: Callable[[], Awaitable[None]]  # returns when there is a connection
    call: Call
    is_up: Callable[[], bool]
    open_stream: Callable[[str, bool], Awaitable[Stream]]
    hosts: Callable[[], tuple[str, ...]]  # where it may be dialled, the likeliest first
    heard: Callable[[], None]  # something came
    may_be_direct: Callable[[], bool]


class Payloads:
    """Both ways."""

    def __init__(self, side: Side, around: Surroundings, dock: Dock) -> None:
        self._side, self._around, self._dock = side, around, dock
        self._streams = {flow: self._stream(flow) for flow in Flow}
        self._carrier = Carrier(
            around.bulk_queue,
            self._streams,
            self._connect,
            around.spawn,
            side.gauge.wrote,
            side.is_up,
            partial(around.turn_of, side.peer),
        )
        self._contributions = Tenant(self._returned)
        self._pool = Pool()
        self._is_credit_due = False
        self._receivers: list[Receiver] = []
        self._is_closed = False

    @property
    def dropped(self) -> int:
        """Payloads that never left."""
        return self._carrier.dropped

    @property
    def sockets(self) -> int:
        """By how many sockets of their own payloads go; with none, they go by streams."""
        return self._carrier.sockets

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, run: RunId, send: Send) -> None:
        """Queue a payload; where it is to be filled in, that is done when its turn comes, in another thread."""
        flow, made = flow_of(send.message), send.message

        def pack() -> Packed:
            nonlocal made
            made = send.filled() if made is send.message else made
            payload: Payload = made.payload  # type: ignore[attr-defined]
            head = framing.packed_head(run, made)
            return framing.prefix(len(head), len(payload), flow), head, payload

        def sent(size: int) -> None:
            self._count(run, size, 0, flow)
            self._around.on_left(self._side.peer, run, made, True)

        def lost(reason: TransportError) -> None:
            self._around.on_left(self._side.peer, run, made, False)

        held = 0 if send.fill is not None else len(made.payload)  # type: ignore[attr-defined]
        self._carrier.put(Parcel(flow, held, pack, sent, lost, send.is_wanted))

    def opened(self, sends: bool, opened: Opened) -> None:
        """A socket with the peer."""
        if self._is_closed or not self._side.is_up() or (not sends and len(self._receivers) >= MOST_SOCKETS):
            opened.socket.close()
        elif sends:
            self._carrier.opened(opened, self._dock)
        else:
            self._receive(opened)

    def connected(self) -> None:
        """The first connection with the peer is made: what waits may go."""
        self._carrier.try_anew()

    def path_changed(self) -> None:
        """By a relay from now on, or not any more."""
        if self._side.may_be_direct():
            for stream in self._streams.values():
                stream.move()
            self._carrier.try_anew()

    def disconnected(self, reason: TransportError) -> None:
        """The last connection with the peer is lost: whatever is left of sockets goes, too."""
        self._carrier.clear(reason)
        self._close_receivers()

    def close(self) -> None:
        """Nothing goes and nothing comes any more."""
        self._is_closed = True
        self._carrier.close(TransportError("the network is closed"))
        self._close_receivers()

    # -- agreeing on sockets --------------------------------------------------------------------------------

    async def serve(self, question: MayIKnock | Knock) -> Message:
        """The answer to the peer, who wants to send: nothing is done for whoever has nothing to send to us."""
        if not self._around.is_fellow(self._side.peer):
            return Refused("we know of no run that we are in together")
        if isinstance(question, MayIKnock):
            return self._dock.invitation(self._side.peer, sends=False)
        return await self._dock.follow(self._side.peer, self._side.hosts(), question, sends=False)

    async def _connect(self, is_extra: bool) -> bool:
        """Dial, or be dialled; whether there is a socket, or about to be one. An extra one leaves room for others."""
        await self._side.reach()
        berths = self._dock.berths
        if not self._side.may_be_direct() or (berths.are_half_full if is_extra else berths.are_full):
            return False
        invited = await self._ask(MayIKnock())
        if isinstance(invited, Knock):
            came = await self._dock.follow(self._side.peer, self._side.hosts(), invited, sends=True)
            if came.came:
                return True
        answer = await self._ask(self._dock.invitation(self._side.peer, sends=True))
        return isinstance(answer, Knocked) and answer.came

    async def _ask(self, question: MayIKnock | Knock) -> Message:
        answer = await self._side.call(question, PATIENCE)
        if isinstance(answer, Refused):
            raise TransportError(answer.reason, REFUSED)
        return answer

    # -- in -------------------------------------------------------------------------------------------------

    def read(self, protocol: str, stream: Stream) -> Incoming[framing.Frame]:
        """Take what comes by a stream."""
        flow, peer = FLOWS[protocol], self._side.peer
        return Incoming(
            stream,
            MAX_BULK_FRAME + framing.MAX_HEAD,
            peer,
            framing.frame,
            partial(self._take, flow, stream.is_relayed),
            self._around.complain,
            self._side.gauge.came,
            is_full=lambda: flow is Flow.SCATTER and self._contributions.held >= SHARED,
        )

    def _take(self, flow: Flow, is_relayed: bool, frame: framing.Frame, size: int) -> float:
        """A frame of a stream, whose payload is copied to where it may stay."""
        self._note(frame.run, size, self._path(is_relayed))
        if not self._around.takes(frame.run):
            return 0.0
        lend = self._contributions.lend if flow is Flow.SCATTER else MEMORY.lend
        slot = lend(len(frame.payload))
        slot[:] = frame.payload
        try:
            message = framing.unpacked(frame.head, slot, flow, self._side.peer)
        except RemoteError as error:
            self._around.complain(error)
            return REST
        self._around.on_message(self._side.peer, frame.run, message)
        return 0.0

    def _receive(self, opened: Opened) -> None:
        """By a socket."""

        def came(run: RunId, message: Message | None, begin: float, end: float, size: int) -> None:
            self._side.gauge.came(begin, end, size)
            self._note(run, size, DIRECT)
            if message is not None:
                self._around.on_message(self._side.peer, run, message)

        def ended() -> None:
            self._pool.close(receiver.credit)
            if receiver in self._receivers:
                self._receivers.remove(receiver)
            self._give_credit()  # its share is the others' now

        dock, around = self._dock, self._around
        receiver = Receiver(
            opened,
            self._side.peer,
            self._contributions,
            Credit(),
            dock.throttle.down,
            dock.posts,
            around.takes,
            around.complain,
            came,
            ended,
        )
        receiver.start()
        self._receivers.append(receiver)
        self._pool.open(receiver.credit)
        dock.berths.take(receiver.thread)
        self._give_credit()

    def _returned(self) -> None:
        """Room of contributions; called anywhere."""
        if not self._is_credit_due:
            self._is_credit_due = True
            self._dock.posts.post(self._give_credit)

    def _give_credit(self) -> None:
        self._is_credit_due = False  # before we look: what is given back from now on has us look again
        grown = self._pool.share_out(self._contributions.held)
        for each in list(self._receivers):
            if each.credit in grown:
                each.report()

    def _note(self, run: RunId, size: int, path: str) -> None:
        self._side.gauge.received += size
        self._side.heard()
        self._around.count(run, 0, size, path)

    # -- inside ---------------------------------------------------------------------------------------------

    def _stream(self, flow: Flow) -> streams.Lane:
        open_stream = partial(self._side.open_stream, PROTOCOLS[flow])
        return streams.Lane(2 * MAX_BULK_FRAME, open_stream, self._around.spawn, self._side.gauge.wrote)

    def _close_receivers(self) -> None:
        for each in self._receivers:
            each.close()
        self._receivers.clear()

    def _count(self, run: RunId, sent: int, received: int, flow: Flow) -> None:
        path = DIRECT if self.sockets else self._path(self._streams[flow].is_relayed)
        self._side.gauge.sent += sent
        self._around.count(run, sent, received, path)

    def _path(self, is_relayed: bool) -> str:
        """That of a stream: two that come together may use both connections for a moment."""
        path = self._around.transport.path(self._side.peer)
        return RELAYED if is_relayed else DIRECT if path == RELAYED else path

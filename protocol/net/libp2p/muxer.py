"""yamux: many streams over one secured connection, as https://github.com/hashicorp/yamux/blob/master/spec.md has it.

libp2p's own takes some twenty turns of the loop for a short message, polls closed windows and does not enforce them.
Here

- a frame is acted on as soon as its bytes are there, without a turn of the loop;
- a peer that sends more than it was granted, or malformed frames, is disconnected. So data that waits for slow readers
  is bounded by the windows, and these by MAX_STREAMS and, for their growth, by MAX_GROWN;
- only data waits for the socket. The task that reads frames must not wait: two ends that only write would wait for each
  other for ever. Nor must ending a stream or reading from it: the peer may never take another byte. Their frames are
  queued, and a peer that does not read and lets the queue grow beyond MAX_ANSWERS is disconnected, too.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from struct import Struct
from types import TracebackType

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetConn, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError, IOException
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from multiaddr import Multiaddr

from shoal.protocol.base.multiaddrs import is_relayed
from shoal.protocol.net.libp2p.session import LINE, Session

FIRST_WINDOW = 256 << 10  # bytes that each side may send on a new stream
MOST_WINDOW = 8 << 20
FRAME = 65_535 - 16 - 12  # bytes: with tag and header, one frame is one message of Noise
BURST = 4 * FRAME  # that a writer hands over at once
USED_UP = 4  # times, and the next window is twice as large
HEADER = Struct("!BBHII")  # version, kind, flags, stream, length
MAX_STREAMS = 64  # of one connection, both directions
MAX_GROWN = 32 << 20  # bytes, of all windows of a connection beyond their first
MAX_ANSWERS = 1 << 20  # bytes
FRAMES_IN_A_TURN = 256  # of the loop: others wait for a millisecond or two
GOODBYE_LIMIT = 0.3  # seconds


class Kind(IntEnum):
    """Of a frame. The length of a WINDOW is a grant, of a PING a number to be said back, of a GO_AWAY a reason."""

    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntEnum):
    """Of a frame: a stream begins, is agreed to, is sent no more on, is dropped."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class ProtocolViolation(Exception):
    """The peer does not speak yamux, or not as it was allowed to."""


class Muxer(IMuxedConn):
    """One connection, for libp2p's swarm, which sets `on_close`."""

    def __init__(self, secured: Session, peer_id: ID) -> None:
        self.peer_id = peer_id
        self.secured_conn = secured
        secured.hand_over(MOST_WINDOW)
        self.event_started, self.event_closed = trio.Event(), trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self.why = ""  # it has ended, for people to read: the first cause of all
        self._streams: dict[int, MuxedStream] = {}
        self._next_number = 1 if secured.is_initiator else 2
        self._grown = 0
        self._opened, self._to_accept = trio.open_memory_channel[MuxedStream](MAX_STREAMS)

    # -- for the swarm --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read frames until the connection ends."""
        try:
            async with trio.open_nursery() as nursery:
                for task in (self._read, self._write):
                    nursery.start_soon(self._until_it_ends, task, nursery.cancel_scope)
                self.event_started.set()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()

    async def close(self) -> None:
        """Say good-bye, if the peer still reads, and end."""
        with trio.CancelScope(shield=True):
            self.ends_because("this node has closed it")
            if not self.is_closed:
                self._say(Kind.GO_AWAY, 0, 0, 0)
                with suppress(IOException, OSError), trio.move_on_after(GOODBYE_LIMIT):
                    await self.secured_conn.write(b"")  # all that is queued is before it
            await self._end()

    def ends_because(self, why: str) -> None:
        """Something is about to end it; what follows of that is no news."""
        self.why = self.why or why

    async def open_stream(self) -> MuxedStream:
        """A stream of ours; the peer may refuse it later."""
        if self.is_closed:
            raise MuxedConnUnavailable("the connection has ended")
        number, self._next_number = self._next_number, self._next_number + 2
        stream = self._streams[number] = MuxedStream(number, self)
        self._say(Kind.WINDOW, Flag.SYN, number, 0)
        return stream

    async def accept_stream(self) -> MuxedStream:
        """The next one that the peer opens."""
        try:
            return await self._to_accept.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise MuxedConnUnavailable("the connection has ended") from None

    @property
    def is_initiator(self) -> bool:
        """Whether we dialled."""
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and not self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self.event_closed.is_set()

    @property
    def has_streams(self) -> bool:
        """Whether any is open, in either direction."""
        return bool(self._streams)

    @property
    def unread(self) -> int:
        """Bytes that came and wait for readers."""
        return self.secured_conn.held + sum(stream.unread for stream in self._streams.values())

    def get_transport_addresses(self) -> list[Multiaddr]:
        """Where it leads."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """How it leads there."""
        return self.secured_conn.get_connection_type()

    # -- for the streams --------------------------------------------------------------------------------------

    async def send_data(self, number: int, data: memoryview) -> None:
        """Return when the socket has taken `data`."""
        frames: list[bytes | memoryview] = []
        for start in range(0, len(data), FRAME):
            part = data[start : start + FRAME]
            frames += HEADER.pack(0, Kind.DATA, 0, number, len(part)), part
        await self.secured_conn.write_all(frames)

    def send_now(self, number: int, data: bytes) -> bool:
        """Whether `data`, a FRAME at most, was taken without waiting; from any thread."""
        return self.secured_conn.write_now((HEADER.pack(0, Kind.DATA, 0, number, len(data)), data))

    def send_grant(self, number: int, more: int) -> None:
        """Let the peer send `more` bytes."""
        self._say(Kind.WINDOW, 0, number, more)

    def send_end(self, number: int, at_once: bool) -> None:
        """Say that nothing follows (FIN); or at once, that nothing is read either (RST)."""
        self._say(Kind.WINDOW, Flag.RST if at_once else Flag.FIN, number, 0)

    def may_grow(self, more: int) -> bool:
        """Whether a window may grow by so much."""
        fits = self._grown + more <= MAX_GROWN
        self._grown += more * fits
        return fits

    def forget(self, number: int) -> None:
        """Both sides have ended the stream, and all of it was read."""
        if (stream := self._streams.pop(number, None)) is not None:
            self._grown -= stream.window - FIRST_WINDOW

    def get_remote_address(self) -> tuple[str, int] | None:
        """Where it leads, for libp2p's host."""
        return self.secured_conn.get_remote_address()

    # -- its tasks --------------------------------------------------------------------------------------------

    async def _until_it_ends(self, task: Callable[[], Awaitable[None]], both: trio.CancelScope) -> None:
        try:
            await task()
        except (IOException, OSError, ProtocolViolation) as error:
            self.ends_because(_words(error))
        both.cancel()

    async def _read(self) -> None:
        while True:
            for _ in range(FRAMES_IN_A_TURN):
                await self._next_frame()
            await trio.lowlevel.checkpoint()

    async def _write(self) -> None:
        await self.secured_conn.write_queued()

    # -- frames -----------------------------------------------------------------------------------------------

    async def _next_frame(self) -> None:
        version, kind, flags, number, length = HEADER.unpack(await self.secured_conn.read(HEADER.size))
        if version != 0 or (kind == Kind.DATA and length > self._most(number, flags)):
            raise ProtocolViolation(f"a frame of version {version}, kind {kind} and {length} bytes")
        if kind in (Kind.DATA, Kind.WINDOW):
            data = await self.secured_conn.read(length) if kind == Kind.DATA else b""
            self._act(number, flags, data, length if kind == Kind.WINDOW else 0)
        elif kind == Kind.PING:
            if flags & Flag.SYN:
                self._answer(Kind.PING, Flag.ACK, 0, length)
        elif kind == Kind.GO_AWAY:
            raise ConnectionClosedError(f"the peer said good-bye{f' (reason {length})' if length else ''}")
        else:
            raise ProtocolViolation(f"a frame of kind {kind}")

    def _most(self, number: int, flags: int) -> int:
        """How long a frame of data may be on a stream; before it is read, as it is held until it is whole."""
        stream = self._streams.get(number)
        if stream is None:
            return FIRST_WINDOW if flags & Flag.SYN else MOST_WINDOW
        return stream.grant

    def _act(self, number: int, flags: int, data: bytes, grant: int) -> None:
        """What a frame means for its stream. One that we do not know any more may still be spoken on for a while."""
        if flags & Flag.SYN:
            self._accept(number)
        stream = self._streams.get(number)
        if stream is None:
            return
        if data and not stream.arrived(data):
            raise ProtocolViolation("it sends more than it was granted")
        if grant:
            stream.granted(grant)
        if flags & Flag.RST:
            stream.cut_off()
        elif flags & Flag.FIN:
            stream.ended()

    def _accept(self, number: int) -> None:
        if number % 2 == self._next_number % 2 or number in self._streams or number == 0:
            raise ProtocolViolation(f"it opens stream {number}, which is not its to open")
        stream = MuxedStream(number, self)
        try:
            if len(self._streams) >= MAX_STREAMS:
                raise trio.WouldBlock
            self._opened.send_nowait(stream)  # who opens and drops them faster than they are served fills this
        except trio.WouldBlock:
            self._answer(Kind.WINDOW, Flag.RST, number, 0)
            return
        self._streams[number] = stream
        self._answer(Kind.WINDOW, Flag.ACK, number, 0)

    def _say(self, kind: Kind, flags: int, number: int, length: int) -> int:
        return self.secured_conn.write_soon(HEADER.pack(0, kind, flags, number, length))

    def _answer(self, kind: Kind, flags: int, number: int, length: int) -> None:
        if self._say(kind, flags, number, length) > MAX_ANSWERS:
            raise ProtocolViolation("it does not read our answers")

    async def _end(self) -> None:
        if self.is_closed:
            return
        self.event_closed.set()
        self._opened.close()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cut_off()
        with suppress(IOException, OSError):
            await self.secured_conn.close()
        if self.on_close is not None:
            await self.on_close()


class MuxedStream(IMuxedStream):
    """For one reader and one writer."""

    def __init__(self, number: int, connection: Muxer) -> None:
        self.muxed_conn: IMuxedConn = connection
        self._number, self._connection = number, connection
        self._came = bytearray()
        self.hand_on: Callable[[bytes], bool] = lambda data: False  # to the reader at once, if it takes `data`
        self.window = self._grant = FIRST_WINDOW
        self.most_window = MOST_WINDOW
        self.most_taken = MOST_WINDOW  # bytes before the next grant: fewer come more evenly
        self._granted, self._sent = FIRST_WINDOW, 0  # bytes in all; each changed by one thread only
        self._taken = 0  # read since the last grant
        self._used = 0  # read since the window was as large as it is
        self._has_ended = self._was_reset = self._sends_no_more = False
        self._change = trio.Event()  # set, and replaced, when a reader or writer may go on

    @property
    def unread(self) -> int:
        """Bytes that came and wait for the reader."""
        return len(self._came)

    @property
    def grant(self) -> int:
        """Bytes that the peer may still send."""
        return self._grant

    @property
    def is_open(self) -> bool:
        """Whether a write has a chance."""
        return not (self._sends_no_more or self._was_reset)

    # -- reading ----------------------------------------------------------------------------------------------

    async def read(self, n: int | None = None) -> bytes:
        """For libp2p, which asks for as much as the peer announces: like `take`, but no more than a LINE."""
        if n is not None and n > LINE:
            raise MuxedStreamError(f"the peer announces {n} bytes at once")
        return await self.take(n if n is not None and n >= 0 else LINE)

    async def take(self, most: int) -> bytes:
        """At least a byte, `most` at most; MuxedStreamEOF at the end, MuxedStreamReset if it was cut off."""
        while not self._came:
            self._check_readable()
            await self._change.wait()
        taken = bytes(memoryview(self._came)[:most])
        del self._came[: len(taken)]
        self._credit(len(taken))
        self._forget_if_over()
        return taken

    async def take_or_end(self, most: int) -> bytes:
        """The same; nothing at the end."""
        try:
            return await self.take(most)
        except MuxedStreamEOF:
            return b""

    def _check_readable(self) -> None:
        if self._was_reset:
            raise MuxedStreamReset("the stream was reset")
        if self._has_ended:
            raise MuxedStreamEOF("the stream has ended")

    def _credit(self, taken: int) -> None:
        self._taken += taken
        self._used += taken
        if self._taken < min(self.window // 2, self.most_taken) or self._has_ended or self._was_reset:
            return
        more, self._taken = self._taken, 0
        is_small = self._used >= USED_UP * self.window and self.window < self.most_window
        if is_small and self._connection.may_grow(self.window):
            more, self.window, self._used = more + self.window, 2 * self.window, 0
        self._grant += more
        self._connection.send_grant(self._number, more)

    # -- writing ----------------------------------------------------------------------------------------------

    async def write(self, data: bytes | memoryview) -> None:
        """Return when the socket has taken all of `data`, at the pace of the peer's grants."""
        view = memoryview(data)
        while view:
            while self._may_send <= 0 and self.is_open:
                await self._change.wait()
            if not self.is_open:
                raise MuxedStreamReset("the stream has ended")
            size = min(len(view), self._may_send, BURST)
            self._sent += size
            await self._connection.send_data(self._number, view[:size])
            view = view[size:]

    def write_now(self, data: bytes) -> bool:
        """Whether `data` was taken, all of it and without waiting; not while a `write` is under way."""
        if len(data) > min(FRAME, self._may_send) or not self.is_open:
            return False
        was_taken = self._connection.send_now(self._number, data)
        self._sent += len(data) * was_taken
        return was_taken

    @property
    def _may_send(self) -> int:
        return self._granted - self._sent

    async def close(self) -> None:
        """Nothing follows; the peer may go on."""
        if not self.is_open:
            return
        self._sends_no_more = True
        self._wake()
        self._connection.send_end(self._number, at_once=False)
        self._forget_if_over()

    async def wait_over(self) -> None:
        """Return when both sides have ended the stream, or one has dropped it."""
        while not self._is_over:
            await self._change.wait()

    async def reset(self) -> None:
        """Drop the stream in both directions, now, and what was not read."""
        if not self._is_over:
            self._connection.send_end(self._number, at_once=True)
        self._came.clear()
        self.cut_off()

    # -- what the connection says ---------------------------------------------------------------------------

    def arrived(self, data: bytes) -> bool:
        """Bytes for the reader; whether that was granted."""
        self._grant -= len(data)
        if self._grant < 0 or self._has_ended:
            return False
        if not self._came and self.hand_on(data):
            self._credit(len(data))
        else:
            self._came += data
            self._wake()
        return True

    def granted(self, more: int) -> None:
        """The peer takes `more` bytes."""
        self._granted += more
        self._wake()

    def ended(self) -> None:
        """The peer sends no more."""
        self._has_ended = True
        self._wake()
        self._forget_if_over()

    def cut_off(self) -> None:
        """The peer, we or the end of the connection dropped the stream; what came before may still be read."""
        self._was_reset = True
        self._wake()
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if not self._came and self._is_over:
            self._connection.forget(self._number)

    @property
    def _is_over(self) -> bool:
        return self._was_reset or (self._sends_no_more and self._has_ended)

    def _wake(self) -> None:
        change, self._change = self._change, trio.Event()
        change.set()

    # -- what libp2p wants besides ----------------------------------------------------------------------------

    def set_deadline(self, ttl: int) -> None:
        """We have none."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Where the connection leads."""
        return self._connection.get_remote_address()

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def goes_by_a_relay(wire: INetConn | INetStream) -> bool:
    """Whether a connection, or the one that a stream lies on, goes by a relay."""
    return any(is_relayed(str(each)) for each in wire.muxed_conn.get_transport_addresses())


def _words(error: Exception) -> str:
    """Of the system's errors their names for people, which are the deepest."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno).lower()
    return str(error) or type(error).__name__

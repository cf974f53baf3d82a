"""yamux (https://github.com/hashicorp/yamux/blob/master/spec.md): many streams over one secured connection.

libp2p's implementation takes some twenty turns of the event loop for a short message, polls closed windows and does not
enforce them. Here

- a frame is acted on as soon as its bytes are there, without a turn of the loop;
- a peer that sends more than it was granted, or malformed frames, is disconnected. So data that waits for slow readers
  is bounded by the windows, and these by MAX_STREAMS and, for their growth, by MAX_GROWN;
- each side may send as many bytes as the other has granted. A reader grants anew what it has taken, half a window at a
  time at most; a stream that has used up its window several times gets a larger one;
- only data waits for the socket. The task that reads frames must not wait, or two ends that only write would wait for
  each other for ever; nor may ending a stream or reading from it, as the peer may never take another byte. Their frames
  are queued, and a peer that does not read and lets the queue grow beyond MAX_ANSWERS is disconnected, too.

Everything belongs to the trio thread, but for `write_now`, which a stream's writer may call from another one.
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
BURST = 4 * FRAME  # bytes that a writer hands over at once
USED_UP = 4  # times that a window is used up before it is doubled
HEADER = Struct("!BBHII")  # version, kind, flags, stream, length
MAX_STREAMS = 64  # of one connection, opened by either side
MAX_GROWN = 32 << 20  # bytes by which all windows of a connection together may grow
MAX_ANSWERS = 1 << 20  # bytes of queued frames
FRAMES_IN_A_TURN = 256  # of the loop: other tasks wait for a millisecond or two
GOODBYE_LIMIT = 0.3  # seconds for the last frame


class Kind(IntEnum):
    """The kinds of frames. `length` is a grant in WINDOW, a number to be echoed in PING, a reason in GO_AWAY."""

    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntEnum):
    """The flags of a frame: its stream is opened, accepted, ended by the sender, or reset."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class ProtocolViolation(Exception):
    """The peer does not speak yamux, or exceeds what it was granted."""


class Muxer(IMuxedConn):
    """A multiplexed connection, for libp2p's swarm, which sets `on_close`."""

    def __init__(self, secured: Session, peer_id: ID) -> None:
        self.peer_id = peer_id
        self.secured_conn = secured
        secured.hand_over(MOST_WINDOW)
        self.event_started, self.event_closed = trio.Event(), trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self.why = ""  # the first cause of its end, for people to read
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
        """Send GO_AWAY if the peer still reads, and end."""
        with trio.CancelScope(shield=True):
            self.ends_because("this node has closed it")
            if not self.is_closed:
                self._say(Kind.GO_AWAY, 0, 0, 0)
                with suppress(IOException, OSError), trio.move_on_after(GOODBYE_LIMIT):
                    await self.secured_conn.write(b"")  # returns when all that was queued before is written
            await self._end()

    def ends_because(self, why: str) -> None:
        """Note the cause of the end that is coming; causes after the first are its consequences."""
        self.why = self.why or why

    async def open_stream(self) -> MuxedStream:
        """Open a stream; the peer may still refuse it later."""
        if self.is_closed:
            raise MuxedConnUnavailable("the connection has ended")
        number, self._next_number = self._next_number, self._next_number + 2
        stream = self._streams[number] = MuxedStream(number, self)
        self._say(Kind.WINDOW, Flag.SYN, number, 0)
        return stream

    async def accept_stream(self) -> MuxedStream:
        """The next stream that the peer opens."""
        try:
            return await self._to_accept.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise MuxedConnUnavailable("the connection has ended") from None

    @property
    def is_initiator(self) -> bool:
        """Whether this side has dialled."""
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and not self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.event_closed.is_set()

    @property
    def has_streams(self) -> bool:
        """Whether any stream is open."""
        return bool(self._streams)

    @property
    def unread(self) -> int:
        """Bytes that were received and wait for readers."""
        return self.secured_conn.held + sum(stream.unread for stream in self._streams.values())

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The addresses of the other end."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Whether it is direct or relayed."""
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
        """Grant the peer `more` bytes."""
        self._say(Kind.WINDOW, 0, number, more)

    def send_end(self, number: int, at_once: bool) -> None:
        """End our direction of a stream (FIN); with `at_once` both (RST)."""
        self._say(Kind.WINDOW, Flag.RST if at_once else Flag.FIN, number, 0)

    def may_grow(self, more: int) -> bool:
        """Count the growth of a window; False if all windows together would exceed MAX_GROWN."""
        fits = self._grown + more <= MAX_GROWN
        self._grown += more * fits
        return fits

    def forget(self, number: int) -> None:
        """Drop a stream that both sides have ended, and that was read to its end."""
        if (stream := self._streams.pop(number, None)) is not None:
            self._grown -= stream.window - FIRST_WINDOW

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other end, for libp2p's host."""
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
        """The longest data frame allowed now; checked before its data are read, as they are held until complete."""
        stream = self._streams.get(number)
        if stream is None:
            return FIRST_WINDOW if flags & Flag.SYN else MOST_WINDOW
        return stream.grant

    def _act(self, number: int, flags: int, data: bytes, grant: int) -> None:
        """Apply a frame to its stream; ignore it for one that we have dropped, as the peer may not know that yet."""
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
            self._opened.send_nowait(stream)  # a peer that opens and drops streams faster than they are served fills it
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
    """One stream, for one reader and one writer."""

    def __init__(self, number: int, connection: Muxer) -> None:
        self.muxed_conn: IMuxedConn = connection
        self._number, self._connection = number, connection
        self._came = bytearray()
        self.hand_on: Callable[[bytes], bool] = lambda data: False  # to the reader at once; False if it takes none now
        self.window = self._grant = FIRST_WINDOW
        self.most_window = MOST_WINDOW
        self.most_taken = MOST_WINDOW  # bytes read before the next grant; with less, data come more evenly
        self._granted, self._sent = FIRST_WINDOW, 0  # total bytes; each is changed by one thread only
        self._taken = 0  # bytes read since the last grant
        self._used = 0  # bytes read since the window last grew
        self._has_ended = self._was_reset = self._sends_no_more = False
        self._change = trio.Event()  # set, and replaced, when a reader or writer may go on

    @property
    def unread(self) -> int:
        """Bytes that were received and wait for the reader."""
        return len(self._came)

    @property
    def grant(self) -> int:
        """Bytes that the peer may still send."""
        return self._grant

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return not (self._sends_no_more or self._was_reset)

    # -- reading ----------------------------------------------------------------------------------------------

    async def read(self, n: int | None = None) -> bytes:
        """For libp2p, which asks for as much as the peer announces: like `take`, but of at most LINE bytes."""
        if n is not None and n > LINE:
            raise MuxedStreamError(f"the peer announces {n} bytes at once")
        return await self.take(n if n is not None and n >= 0 else LINE)

    async def take(self, most: int) -> bytes:
        """Between 1 and `most` bytes; MuxedStreamEOF at the end, MuxedStreamReset after a reset."""
        while not self._came:
            self._check_readable()
            await self._change.wait()
        taken = bytes(memoryview(self._came)[:most])
        del self._came[: len(taken)]
        self._credit(len(taken))
        self._forget_if_over()
        return taken

    async def take_or_end(self, most: int) -> bytes:
        """Like `take`, but returns b"" at the end."""
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
        """Write all of `data`, as fast as the peer grants; return when the socket has taken it."""
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
        """End our direction (FIN); the peer may go on."""
        if not self.is_open:
            return
        self._sends_no_more = True
        self._wake()
        self._connection.send_end(self._number, at_once=False)
        self._forget_if_over()

    async def wait_over(self) -> None:
        """Return when both sides have ended the stream, or one has reset it."""
        while not self._is_over:
            await self._change.wait()

    async def reset(self) -> None:
        """End both directions at once, and discard unread data."""
        if not self._is_over:
            self._connection.send_end(self._number, at_once=True)
        self._came.clear()
        self.cut_off()

    # -- what the connection reports ------------------------------------------------------------------------

    def arrived(self, data: bytes) -> bool:
        """Data has come; False if the peer had no grant for it."""
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
        """The peer has granted `more` bytes."""
        self._granted += more
        self._wake()

    def ended(self) -> None:
        """The peer has ended its direction."""
        self._has_ended = True
        self._wake()
        self._forget_if_over()

    def cut_off(self) -> None:
        """The stream was reset by either side, or its connection ended; earlier data may still be read."""
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

    # -- the rest of libp2p's interface -------------------------------------------------------------------------

    def set_deadline(self, ttl: int) -> None:
        """Ignored: deadlines are set by trio's cancel scopes."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other end of the connection."""
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
    """An error in words: that of the system's error behind it, if there is one."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno).lower()
    return str(error) or type(error).__name__

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

import trio
from libp2p.abc import IMuxedConn
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError, IOException
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from multiaddr import Multiaddr

from shoal.protocol.net.libp2p.muxed import FIRST_WINDOW, FRAME, MOST_WINDOW, MuxedStream
from shoal.protocol.net.libp2p.session import Session

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


class Misbehaved(Exception):
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
        stream = self._streams[number] = MuxedStream(number, self, self)
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
        except (IOException, OSError, Misbehaved) as error:
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
            raise Misbehaved(f"a frame of version {version}, kind {kind} and {length} bytes")
        if kind in (Kind.DATA, Kind.WINDOW):
            data = await self.secured_conn.read(length) if kind == Kind.DATA else b""
            self._act(number, flags, data, length if kind == Kind.WINDOW else 0)
        elif kind == Kind.PING:
            if flags & Flag.SYN:
                self._answer(Kind.PING, Flag.ACK, 0, length)
        elif kind == Kind.GO_AWAY:
            raise ConnectionClosedError(f"the peer said good-bye{f' (reason {length})' if length else ''}")
        else:
            raise Misbehaved(f"a frame of kind {kind}")

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
            raise Misbehaved("it sends more than it was granted")
        if grant:
            stream.granted(grant)
        if flags & Flag.RST:
            stream.cut_off()
        elif flags & Flag.FIN:
            stream.ended()

    def _accept(self, number: int) -> None:
        if number % 2 == self._next_number % 2 or number in self._streams or number == 0:
            raise Misbehaved(f"it opens stream {number}, which is not its to open")
        stream = MuxedStream(number, self, self)
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
            raise Misbehaved("it does not read our answers")

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


def _words(error: Exception) -> str:
    """Of the system's errors their names for people, which are the deepest."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno).lower()
    return str(error) or type(error).__name__

"""Frames on streams.

A `Lane` writes frames of one class to a peer, a `FrameReader` reads one stream that the peer has opened, and
`IncomingStreams` manages all streams that it has opened.

Rules of writing:
- `put` never blocks. The queue is bounded in bytes; a frame that does not fit is dropped and counted.
- A packed frame is written within `put` if the queue is empty and the stream ready. But if the last one was written so
  just now, it is one of many: these are written together a moment later, which costs less than one write for each.
- Each peer writes only to streams that it opened itself. So two peers that dial each other at once have nothing to
  agree on: whichever connection a stream lies on, frames are neither repeated nor reordered.
- A stream is replaced between frames, never within one. Moving to a better connection loses nothing: the old stream is
  used until the new one is open, and is then ended, not reset. Only a relayed stream is moved: the end of any other
  tells the peer that the connection is lost. If a connection is lost, so is its queue: the protocols above repair what
  still matters, and late messages are often worse than none.
- A payload is encoded when its turn comes, so that it is not copied while it waits; until then it must not change.

Rules of reading:
- A frame is handed on in the same turn of the loop in which its last byte comes. `take` returns for how many seconds
  nothing more is taken; nothing is taken while `is_full()` either. About AHEAD bytes wait here meanwhile, and the rest
  at the peer.
- Bad framing, or a frame that is not complete in time, ends the stream and is complained about.
- After the end of a stream, the whole frames that came before are still handed on.
- The time that a frame took is measured between received pieces; while nothing is taken, nothing is measured.

Rules of incoming streams:
- A new stream replaces the old one of its protocol. If the old one is relayed and the new one is not, the peer has
  moved to a better connection: the new one waits for the end of the old one, so that frames stay in order; it waits
  only for a limited time, which is longer while the old one still brings something.
- Otherwise, if the old one has not ended, the peer has lost a connection that looks alive here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.frames import LENGTH_SIZE, frame_length
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.net.transport.transport import Stream

AHEAD = 1 << 18  # bytes that the peer may send before they are asked for
FULL_REST = 0.02  # seconds until `is_full` is asked again
TURN = 0.005  # seconds of the loop at a time
FRAME_LIMIT = 120.0  # seconds for one frame, so that no peer makes us keep half of one for ever
FOLLOW_LIMIT = 2.0  # seconds without a byte on an old stream, after which its end is not waited for
FOLLOW_MOST = 15.0  # seconds to wait for its end at most
BATCH = 256 << 10  # bytes up to which small frames are written together
JUST_NOW = 0.0002  # seconds: less than an answer takes, so that successive questions are not delayed

log = logging.getLogger(__name__)

F = TypeVar("F")

Take = Callable[[F, int], float]
"""take(frame, its size): the seconds for which no more frames are to be taken."""


class FrameReader(Generic[F]):
    """Reads the frames of `stream`, of at most `limit` bytes each, until it ends or is closed.

    Each is decoded and passed to `take`; `came(begin, end, size)` is told how long it was on its way, and
    `complain(error)` about bad ones.
    """

    def __init__(
        self,
        stream: Stream,
        limit: int,
        sender: PeerId,
        decode: Callable[[bytes, PeerId], F],
        take: Take[F],
        complain: Callable[[RemoteError], None],
        came: Callable[[float, float, int], None] = lambda begin, end, size: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stream, self._limit, self._sender = stream, limit, sender
        self._decode, self._is_full = decode, is_full
        self._take, self._complain, self._frame_came = take, complain, came
        self._had, self._had_at = 0, 0.0  # the first piece of the present frame: its bytes, and when it came
        self._fed_at = 0.0  # when the last piece came
        self._came = bytearray()
        self._taken = 0  # bytes of whole frames
        self._next_size = LENGTH_SIZE  # bytes of the present frame, as far as known
        self._pause: asyncio.Handle | None = None
        self._patience: asyncio.TimerHandle | None = None  # ends with the present frame
        self.has_ended = self.is_over = False  # the peer sends nothing more; we take nothing more
        self._when_over: Callable[[], None] = lambda: None
        stream.listen(self._feed, self._end)
        stream.allow(AHEAD)

    @property
    def is_relayed(self) -> bool:
        """Whether the stream goes by a relay."""
        return self._stream.is_relayed

    @property
    def is_broken(self) -> bool:
        """Whether the stream, or the connection below it, was broken off, and not by us."""
        return not self._stream.is_open and (self.has_ended or not self.is_over)

    def follow(self, last: FrameReader[Any]) -> None:
        """Take nothing before the end of `last`, the peer's earlier stream, or until the limits for that are over."""
        begin = time.monotonic()
        hold: asyncio.Handle | None = None

        def wait() -> None:
            nonlocal hold
            due = min(max(begin, last._fed_at) + FOLLOW_LIMIT, begin + FOLLOW_MOST)
            if (rest := due - time.monotonic()) > 0:
                hold = self._pause = asyncio.get_running_loop().call_later(rest, wait)
            else:
                self._has_rested()

        def go_on() -> None:
            if hold is not None and self._pause is hold:
                hold.cancel()
                self._has_rested()

        wait()
        last._when_over = go_on

    def close(self) -> None:
        """Take nothing more, and reset the stream."""
        self.is_over = True
        for timer in (self._pause, self._patience):
            if timer is not None:
                timer.cancel()
        self._came.clear()
        self._stream.reset()
        self._when_over()

    def _feed(self, data: bytes) -> None:
        if not self.is_over:
            self._fed_at = time.monotonic()
            if not self._came:
                self._had, self._had_at = len(data), self._fed_at
            self._came += data
            self._go_on()

    def _end(self, reason: BaseException) -> None:
        """The peer has ended the stream, or the connection is lost, which is reported elsewhere."""
        self.has_ended = True
        self._go_on()

    def _go_on(self) -> None:
        due = time.monotonic() + TURN
        try:
            while self._pause is None and not self.is_over and (data := self._next()) is not None:
                self._rest(self._take(self._decode(data, self._sender), LENGTH_SIZE + len(data)), due)
        except RemoteError as error:
            self._complain(error)
            self.close()
        except Exception:  # a bug of ours: what follows could not be trusted
            log.exception("a frame of %s could not be taken", short(self._sender))
            self.close()
        if self._pause is None and not self.is_over:
            self._wait()

    def _next(self) -> bytes | None:
        """The next frame without its length; None if it is not complete."""
        if len(self._came) < LENGTH_SIZE:
            return None
        self._next_size = LENGTH_SIZE + frame_length(bytes(self._came[:LENGTH_SIZE]), self._limit, self._sender)
        if len(self._came) < self._next_size:
            return None
        data = bytes(memoryview(self._came)[LENGTH_SIZE : self._next_size])
        del self._came[: self._next_size]
        self._measure()
        self._taken += self._next_size
        self._next_size = LENGTH_SIZE
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return data

    def _measure(self) -> None:
        """Report the time of the frame just completed; what is left is the first piece of the next one."""
        size = self._next_size - self._had
        if size > 0:
            self._frame_came(self._had_at, self._fed_at, size)
        self._had, self._had_at = len(self._came), max(self._had_at, self._fed_at)

    def _rest(self, seconds: float, due: float) -> None:
        """Take nothing for so long; and yield to the loop if this turn has been long."""
        loop = asyncio.get_running_loop()
        if self.is_over:
            return
        if self._is_full():
            seconds = max(seconds, FULL_REST)
        if seconds:
            self._pause = loop.call_later(seconds, self._has_rested)
        elif time.monotonic() > due:
            self._pause = loop.call_soon(self._go_on_again)

    def _has_rested(self) -> None:
        self._had, self._had_at = len(self._came), time.monotonic()
        if self._is_full():
            self._pause = asyncio.get_running_loop().call_later(FULL_REST, self._has_rested)
        else:
            self._go_on_again()

    def _go_on_again(self) -> None:
        self._pause = None
        self._go_on()

    def _wait(self) -> None:
        """Let more bytes come, or close if the stream has ended."""
        if self.has_ended:
            self.close()
            return
        self._stream.allow(self._taken + self._next_size + AHEAD)
        if self._next_size > LENGTH_SIZE and self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(FRAME_LIMIT, self._give_up)

    def _give_up(self) -> None:
        self._complain(RemoteError(f"took more than {FRAME_LIMIT:g} s for one frame", self._sender))
        self.close()


class IncomingStreams:
    """The streams that one peer has opened: one for each protocol and, while the peer moves, the one that it leaves.

    `read(protocol, stream)` begins to read one; `was_lost(protocol)` is called if the peer has lost one unnoticed.
    """

    def __init__(self, read: Callable[[str, Stream], FrameReader[Any]], was_lost: Callable[[str], None]) -> None:
        self._read, self._was_lost = read, was_lost
        self._streams: dict[str, FrameReader[Any]] = {}
        self._replaced: dict[str, FrameReader[Any]] = {}

    def accept(self, protocol: str, stream: Stream) -> None:
        """Read a stream that the peer has opened."""
        last = self._streams.get(protocol)
        new = self._streams[protocol] = self._read(protocol, stream)
        if last is None or last.is_over:
            return
        if last.has_ended or (last.is_relayed and not new.is_relayed):
            new.follow(last)
            self._replace(protocol, last)
        else:
            last.close()
            self._was_lost(protocol)

    def is_broken(self, protocol: str) -> bool:
        """Whether the stream of a protocol was broken off, and frames on it may be lost."""
        return protocol in self._streams and self._streams[protocol].is_broken

    def close(self) -> None:
        """Close all of them."""
        for each in [*self._streams.values(), *self._replaced.values()]:
            each.close()

    def _replace(self, protocol: str, last: FrameReader[Any]) -> None:
        """Read the old stream to its end; if the peer moves again before that, an even older one is closed."""
        if protocol in self._replaced and not self._replaced[protocol].is_over:
            self._replaced[protocol].close()
        self._replaced[protocol] = last


@dataclass(frozen=True, slots=True, eq=False)
class QueuedFrame:
    """A frame to be sent: about `size` bytes, made by `pack`. Either `sent(bytes)` or `lost(reason)` follows.

    If `pack` returns no parts, nothing is written, and `sent(0)` follows. A frame that `is_packed` already may be
    written, and `sent` called, before `put` returns.
    """

    size: int
    pack: Callable[[], list[bytes]]
    sent: Callable[[int], None]
    lost: Callable[[TransportError], None] | None = None
    is_packed: bool = False


class Lane:
    """Queues and writes the frames of one class to one peer. `open_stream(may_connect)` may dial only if told so."""

    def __init__(
        self,
        limit: int,
        open_stream: Callable[[bool], Awaitable[Stream]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        wrote: Callable[[float, float, int], None] = lambda begin, end, size: None,
        has_moved: Callable[[], None] = lambda: None,
        has_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit = limit
        self._open_stream = open_stream
        self._spawn = spawn
        self._wrote = wrote  # wrote(begin, end, bytes), after each write
        self._queue: deque[QueuedFrame] = deque()
        self._queued = 0
        self._stream: Stream | None = None
        self._writing: Stream | None = None  # the stream that is in the middle of a frame
        self._writer: asyncio.Task[None] | None = None
        self._mover: asyncio.Task[None] | None = None
        self._ways = 0  # how often a better connection came
        self._written_at = 0.0  # when a frame was last written within `put`
        self._has_moved = has_moved  # called when the lane has moved to a better connection
        self._has_broken = has_broken  # called when it finds its stream broken off: written frames may be lost
        self.is_relayed = False  # whether the last frame went by a relay
        self.dropped = 0

    @property
    def is_idle(self) -> bool:
        """Whether all frames have been written or dropped."""
        return self._writer is None

    @property
    def is_broken(self) -> bool:
        """Whether the stream was broken off, and frames on it may be lost."""
        return self._stream is not None and not self._stream.is_open

    def put(self, frame: QueuedFrame, urgent: bool = False) -> None:
        """Queue a frame, at the front if it is urgent, or drop it if the lane is full."""
        if self._queued + frame.size > self._limit:
            self._lose(frame, TransportError("too much waits for this peer already"))
            return
        if self._writer is None and frame.is_packed and self._leaves_at_once(frame):
            return
        (self._queue.appendleft if urgent else self._queue.append)(frame)
        self._queued += frame.size
        if self._writer is None:
            self._writer = self._spawn(self._drain())

    def clear(self, reason: TransportError) -> None:
        """The peer is out of reach: drop all queued frames, and reset the stream."""
        lost = list(self._queue)
        self._queue.clear()
        self._queued = 0
        self.renew()
        for frame in lost:
            self._lose(frame, reason)

    def renew(self) -> None:
        """Reset the stream, on which frames may be lost; the next frame opens a new one."""
        if self._stream is not None:
            self._stream.reset()
            self._stream = None

    def move(self) -> None:
        """There is a direct connection: move a relayed stream there, once the new one is open."""
        self._ways += 1
        if self._stream is not None and self._stream.is_relayed and self._mover is None:
            self._mover = self._spawn(self._move(self._stream))

    async def _move(self, old: Stream) -> None:
        try:
            new = await self._open_stream(False)  # without dialling, as nobody may want another connection
        except TransportError:
            return  # the old one is used on
        finally:
            self._mover = None
        if self._stream is not old:  # it was reset or replaced meanwhile
            new.reset()
            return
        self._stream = new
        if self._writing is not old:  # else `_write_next` ends it after its frame
            old.finish()
        self._has_moved()

    def _leaves_at_once(self, frame: QueuedFrame) -> bool:
        now = asyncio.get_running_loop().time()
        if self._stream is None or not self._stream.is_open or now - self._written_at < JUST_NOW:
            return False
        data = b"".join(frame.pack())
        was_taken = self._stream.write_now(data)
        if was_taken:
            self._written_at = now
            frame.sent(len(data))
        return was_taken

    async def _drain(self) -> None:
        """Write until the queue is empty."""
        try:
            while self._queue:
                try:
                    stream = await self._usable_stream()
                except TransportError as error:
                    self.clear(error)
                else:
                    await self._write_next(stream)
        finally:
            self._writer = None

    async def _usable_stream(self) -> Stream:
        while self._stream is None or not self._stream.is_open:
            if self._mover is not None:  # if two streams were opened at once, the peer would end one
                await asyncio.wait([self._mover])
                continue
            self._forget_broken()
            ways = self._ways
            self._stream = await self._open_stream(True)
            if ways != self._ways:
                self.move()
        return self._stream

    def _forget_broken(self) -> None:
        """Let go of a stream that has broken off, of which the event of its connection may tell only later."""
        if self._stream is not None:
            self._stream = None
            self._has_broken()

    async def _write_next(self, stream: Stream) -> None:
        batch = self._take()
        parts = [part for _, packed in batch for part in packed]
        if not parts:
            for frame, _ in batch:
                frame.sent(0)
            return
        begin = asyncio.get_running_loop().time()
        if len(batch) > 1:
            parts = [b"".join(parts)]
        self._writing = stream
        try:
            if len(parts) != 1 or not stream.write_now(parts[0]):
                await stream.write(*parts)
            if stream is not self._stream:
                stream.finish()
        except TransportError as error:
            stream.reset()
            if self._stream is stream:
                self._forget_broken()
            for frame, _ in batch:
                self._lose(frame, error)
        else:
            self._wrote(begin, asyncio.get_running_loop().time(), sum(map(len, parts)))
            self.is_relayed = stream.is_relayed
            for frame, packed in batch:
                frame.sent(sum(len(part) for part in packed))
        finally:
            self._writing = None

    def _take(self) -> list[tuple[QueuedFrame, list[bytes]]]:
        """The next frame, with as many small ones behind it as fit into one write."""
        batch: list[tuple[QueuedFrame, list[bytes]]] = []
        size = 0
        while self._queue and (not batch or size + self._queue[0].size <= BATCH):
            frame = self._queue.popleft()
            self._queued -= frame.size
            size += frame.size
            try:
                batch.append((frame, frame.pack()))
            except Exception as error:  # a bug of ours, which must not cost the other frames
                log.exception("a message cannot be encoded")
                self._lose(frame, TransportError(f"cannot be encoded: {error}"))
        return batch

    def _lose(self, frame: QueuedFrame, reason: TransportError) -> None:
        self.dropped += 1
        if frame.lost is not None:
            frame.lost(reason)

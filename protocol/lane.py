"""A lane: the frames of one class on their way to one peer, in order, written to one stream.

Rules:
- `put` never blocks. What is queued is bounded in bytes; a frame that finds the lane full is dropped and counted.
- A frame that is packed, and finds nothing before it and the stream ready, leaves within `put`. If the last one did so
  just now, it is one of many: these leave together a moment later, as to write each on its own would cost more.
- Each peer writes only to streams that it opened itself. So two peers that dial each other at once have nothing
  to agree on: whichever connection a stream lies on, frames are neither doubled nor reordered.
- A stream is replaced between frames, never within one. Who moves to a better connection loses nothing: the old stream
  serves until the new one is open, and is then ended, not dropped. Only a stream by a relay is moved: where a peer
  is left otherwise, it takes the old connection for lost. When it is, so is all that is queued: the protocols above
  repair what still matters, and late words are often worse than none.
- A payload is encoded when its turn comes, so that it is not copied while it waits; until then it must not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from shoal.protocol.errors import TransportError
from shoal.protocol.transport import Stream

BATCH = 256 << 10  # small frames are joined up to this many bytes
JUST_NOW = 0.0002  # seconds: less than an answer takes, so that who asks one thing after the other never waits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A frame to be sent: about `size` bytes, made by `pack`. Either `sent(bytes)` or `lost(reason)` follows.

    If `pack` makes nothing, nothing is written for it, which counts as sent.

    One that `is_packed` already may leave, and `sent` follow, before `put` returns.
    """

    size: int
    pack: Callable[[], list[bytes]]
    sent: Callable[[int], None]
    lost: Callable[[TransportError], None] | None = None
    is_packed: bool = False


class Lane:
    """The queue and the writer of one class of frames to one peer. `open_stream(may_connect)` connects if need be."""

    def __init__(
        self,
        limit: int,
        open_stream: Callable[[bool], Awaitable[Stream]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        wrote: Callable[[float, float, int], None] = lambda begin, end, size: None,
    ) -> None:
        self._limit = limit
        self._open_stream = open_stream
        self._spawn = spawn
        self._wrote = wrote  # hears when a frame was written, from and to, and of how many bytes
        self._queue: deque[Parcel] = deque()
        self._queued = 0
        self._stream: Stream | None = None
        self._writing: Stream | None = None  # that is in the middle of a frame
        self._writer: asyncio.Task[None] | None = None
        self._mover: asyncio.Task[None] | None = None
        self._ways = 0  # how often there was a better one
        self._left_at = 0.0  # when a frame last left within `put`
        self.has_moved: Callable[[], None] = lambda: None  # is told that what follows goes a better way
        self.is_relayed = False  # whether what left last went by a relay
        self.dropped = 0

    @property
    def is_idle(self) -> bool:
        """Whether all that was put has been written or dropped."""
        return self._writer is None

    def put(self, parcel: Parcel, urgent: bool = False) -> None:
        """Queue a frame, at the front if it is urgent, or drop it if the lane is full."""
        if self._queued + parcel.size > self._limit:
            self._lose(parcel, TransportError("too much waits for this peer already"))
            return
        if self._writer is None and parcel.is_packed and self._leaves_at_once(parcel):
            return
        (self._queue.appendleft if urgent else self._queue.append)(parcel)
        self._queued += parcel.size
        if self._writer is None:
            self._writer = self._spawn(self._drain())

    def clear(self, reason: TransportError) -> None:
        """The peer is out of reach: drop all that is queued, and the stream."""
        lost = list(self._queue)
        self._queue.clear()
        self._queued = 0
        self.renew()
        for parcel in lost:
            self._lose(parcel, reason)

    def renew(self) -> None:
        """Write what follows to a new stream; what is on the old one may be lost."""
        if self._stream is not None:
            self._stream.reset()
            self._stream = None

    def move(self) -> None:
        """There is a connection without a relay: write what follows there, as soon as it has a stream for us."""
        self._ways += 1
        if self._stream is not None and self._stream.is_relayed and self._mover is None:
            self._mover = self._spawn(self._move(self._stream))

    async def _move(self, old: Stream) -> None:
        try:
            new = await self._open_stream(False)  # if the connection is lost meanwhile, nobody may want another
        except TransportError:
            return  # the old one serves on
        finally:
            self._mover = None
        if self._stream is not old:  # it was given up meanwhile, and with it whatever was opened then
            new.reset()
            return
        self._stream = new
        if self._writing is not old:  # else it is ended after its frame
            old.finish()
        self.has_moved()

    def _leaves_at_once(self, parcel: Parcel) -> bool:
        now = asyncio.get_running_loop().time()
        if self._stream is None or not self._stream.is_open or now - self._left_at < JUST_NOW:
            return False
        data = b"".join(parcel.pack())
        was_taken = self._stream.write_now(data)
        if was_taken:
            self._left_at = now
            parcel.sent(len(data))
        return was_taken

    async def _drain(self) -> None:
        """Write until nothing is left."""
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
            if self._mover is not None:  # of two streams that are opened at once, the peer would end one
                await asyncio.wait([self._mover])
                continue
            self._stream, ways = None, self._ways
            self._stream = await self._open_stream(True)
            if ways != self._ways:
                self.move()
        return self._stream

    async def _write_next(self, stream: Stream) -> None:
        batch = self._take()
        parts = [part for _, packed in batch for part in packed]
        if not parts:
            for parcel, _ in batch:
                parcel.sent(0)
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
                self._stream = None
            for parcel, _ in batch:
                self._lose(parcel, error)
        else:
            self._wrote(begin, asyncio.get_running_loop().time(), sum(map(len, parts)))
            self.is_relayed = stream.is_relayed
            for parcel, packed in batch:
                parcel.sent(sum(len(part) for part in packed))
        finally:
            self._writing = None

    def _take(self) -> list[tuple[Parcel, list[bytes]]]:
        """The next frame, with as many small ones behind it as go into one write."""
        batch: list[tuple[Parcel, list[bytes]]] = []
        size = 0
        while self._queue and (not batch or size + self._queue[0].size <= BATCH):
            parcel = self._queue.popleft()
            self._queued -= parcel.size
            size += parcel.size
            try:
                batch.append((parcel, parcel.pack()))
            except Exception as error:  # our own mistake; it must not cost the other frames
                log.exception("a message cannot be encoded")
                self._lose(parcel, TransportError(f"cannot be encoded: {error}"))
        return batch

    def _lose(self, parcel: Parcel, reason: TransportError) -> None:
        self.dropped += 1
        if parcel.lost is not None:
            parcel.lost(reason)

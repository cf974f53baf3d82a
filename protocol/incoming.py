"""Frames as they come on one stream that a peer opened.

Rules:
- A frame is handed on in the very turn of the loop that brings its last byte. Whoever takes it says for how many
  seconds nothing more is to be taken; and as long as it `is_full`, nothing is. What comes meanwhile waits here, about
  AHEAD bytes, and beyond that at the peer.
- Bad framing, and a frame that does not come to its end in time, end the stream, and are complained of.
- When the stream has ended, what came whole before is still handed on.
- A stream that follows another waits for the end of that one, so that nothing overtakes; for a while only, which is
  longer while the other one brings something.
- How long a frame was on its way is measured between pieces that came; while nothing is taken, nothing is measured.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from shoal.protocol.errors import RemoteError
from shoal.protocol.frames import LENGTH_SIZE, frame_length
from shoal.protocol.ids import PeerId, short
from shoal.protocol.transport import Stream

AHEAD = 1 << 18  # bytes that are fetched before anybody asks for them
FULL_REST = 0.02  # seconds
TURN = 0.005  # seconds of the loop at a time
FRAME_LIMIT = 120.0  # seconds for one frame: nobody makes us keep half of one for ever
FOLLOW_LIMIT = 2.0  # seconds without a byte: by then the end of a stream has come, or will never come
FOLLOW_MOST = 15.0  # seconds, whatever it brings

log = logging.getLogger(__name__)

F = TypeVar("F")

Take = Callable[[F, int], float]
"""take(frame, its size): the seconds for which nothing more is to be taken."""


class Incoming(Generic[F]):
    """The frames of `stream`, of at most `limit` bytes each, until it ends or is closed."""

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
        self._had, self._had_at = 0, 0.0  # of the frame that comes: its first piece, and when that was there
        self._fed_at = 0.0  # when the last piece came
        self._came = bytearray()
        self._taken = 0  # bytes of whole frames
        self._next_size = LENGTH_SIZE  # of the frame that comes, as far as we know
        self._pause: asyncio.Handle | None = None
        self._patience: asyncio.TimerHandle | None = None  # with the frame that comes
        self.has_ended = self.is_over = False  # the peer says no more; we take no more
        self._when_over: Callable[[], None] = lambda: None
        stream.listen(self._feed, self._end)
        stream.allow(AHEAD)

    @property
    def is_relayed(self) -> bool:
        """Whether it comes by a relay."""
        return self._stream.is_relayed

    def follow(self, last: Incoming[Any]) -> None:
        """Take nothing before the end of `last`, on which the peer spoke before, unless that end does not come."""
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
        """Take nothing more, and drop the stream."""
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
        """The peer ended it, or the connection is lost, which others will say."""
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
        except Exception:  # our own mistake: what comes after would be taken for what it is not
            log.exception("a frame of %s could not be taken", short(self._sender))
            self.close()
        if self._pause is None and not self.is_over:
            self._wait()

    def _next(self) -> bytes | None:
        """The next frame without its length, if it is there."""
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
        """A frame has come, and what is left is the first piece of the next one."""
        size = self._next_size - self._had
        if size > 0:
            self._frame_came(self._had_at, self._fed_at, size)
        self._had, self._had_at = len(self._came), max(self._had_at, self._fed_at)

    def _rest(self, seconds: float, due: float) -> None:
        """As long as that; and let others have a turn, if this one has been long."""
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
        """For more."""
        if self.has_ended:
            self.close()
            return
        self._stream.allow(self._taken + self._next_size + AHEAD)
        if self._next_size > LENGTH_SIZE and self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(FRAME_LIMIT, self._give_up)

    def _give_up(self) -> None:
        self._complain(RemoteError(f"took more than {FRAME_LIMIT:g} s for one frame", self._sender))
        self.close()

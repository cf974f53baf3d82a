"""One stream of a multiplexed connection: what came and was not read yet, and how much each side may send.

The windows are yamux's: each side may send as many bytes as the other has granted. The reader grants anew what it has
taken, half a window at a time at most; a stream that has used up its window several times gets a larger one.

Everything belongs to the trio thread, but for `write_now`, which its writer may call from another one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import trio
from libp2p.abc import IMuxedConn, IMuxedStream
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset

from shoal.protocol.net.libp2p.session import LINE

FIRST_WINDOW = 256 << 10  # bytes that each side may send on a new stream
MOST_WINDOW = 8 << 20
FRAME = 65_535 - 16 - 12  # bytes: with tag and header, one frame is one message of Noise
BURST = 4 * FRAME  # that a writer hands over at once
USED_UP = 4  # times, and the next window is twice as large


class Carrier(Protocol):
    """What a stream needs of its connection."""

    async def send_data(self, number: int, data: memoryview) -> None:
        """Return when the socket has taken `data`."""

    def send_now(self, number: int, data: bytes) -> bool:
        """Whether `data`, a FRAME at most, was taken without waiting; from any thread."""

    def send_grant(self, number: int, more: int) -> None:
        """Let the peer send `more` bytes."""

    def send_end(self, number: int, at_once: bool) -> None:
        """Say that nothing follows (FIN); or at once, that nothing is read either (RST)."""

    def may_grow(self, more: int) -> bool:
        """Whether a window may grow by so much: those of one connection together are bounded."""

    def forget(self, number: int) -> None:
        """Both sides have ended the stream, and all of it was read."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Where the connection leads."""


class MuxedStream(IMuxedStream):
    """For one reader and one writer."""

    def __init__(self, number: int, carrier: Carrier, connection: IMuxedConn) -> None:
        self.muxed_conn = connection
        self._number, self._carrier = number, carrier
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
        if is_small and self._carrier.may_grow(self.window):
            more, self.window, self._used = more + self.window, 2 * self.window, 0
        self._grant += more
        self._carrier.send_grant(self._number, more)

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
            await self._carrier.send_data(self._number, view[:size])
            view = view[size:]

    def write_now(self, data: bytes) -> bool:
        """Whether `data` was taken, all of it and without waiting; not while a `write` is under way."""
        if len(data) > min(FRAME, self._may_send) or not self.is_open:
            return False
        was_taken = self._carrier.send_now(self._number, data)
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
        self._carrier.send_end(self._number, at_once=False)
        self._forget_if_over()

    async def wait_over(self) -> None:
        """Return when both sides have ended the stream, or one has dropped it."""
        while not self._is_over:
            await self._change.wait()

    async def reset(self) -> None:
        """Drop the stream in both directions, now, and what was not read."""
        if not self._is_over:
            self._carrier.send_end(self._number, at_once=True)
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
            self._carrier.forget(self._number)

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
        return self._carrier.get_remote_address()

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

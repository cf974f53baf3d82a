"""A libp2p stream under trio, with flow control in both directions.

It is written as fast as the peer grants, and read only as far as its reader allows. If our owner has set a rate, it
pauses between pieces in either direction; its connection reads on, so that messages on other streams arrive.

A stream may have a connection of its own, which then ends with it. Belongs to the trio thread, but for `is_open` and
`write_now`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import trio
from libp2p.abc import INetStream
from libp2p.network.stream.net_stream import NetStream

from shoal.protocol.net.libp2p.muxer import MuxedStream, Muxer, goes_by_a_relay
from shoal.protocol.net.libp2p.swarm import close_connections
from shoal.protocol.net.system.throttle import StreamPace, Throttle

READ_SIZE = 1 << 16
SHORTEST = 16  # bytes that are handed to the other thread at once; less is read in larger pieces
OVER_LIMIT = 120.0  # seconds that the peer has to read a finished stream to its end, before its connection is closed

Buffer = bytes | memoryview


class RawStream:
    """A stream for one reader and one writer."""

    def __init__(self, raw: INetStream, own_connection: bool = False, throttle: Throttle | None = None) -> None:
        self._raw = cast(NetStream, raw)
        self._own_connection = own_connection
        self._muxed = cast(MuxedStream, self._raw.muxed_stream)
        self.is_relayed = goes_by_a_relay(raw)
        throttle = throttle or Throttle()
        self._out, self._in = StreamPace(throttle.up), StreamPace(throttle.down)
        self._released = trio.Event()
        self._allowed, self._has_room = 0, trio.Event()

    @property
    def is_open(self) -> bool:
        return self._muxed.is_open

    def allow(self, more: int) -> None:
        """Let `pump` hand on `more` bytes more."""
        self._allowed += more
        self._has_room.set()

    async def pump(self, feed: Callable[[bytes], None]) -> None:
        """Pass received bytes to `feed`, as far as allowed; raises when the stream ends."""

        def hand_on(data: bytes) -> bool:
            if self._allowed <= 0 or not self._in.is_free or not SHORTEST <= len(data) <= READ_SIZE:
                return False
            self._allowed -= len(data)
            feed(data)
            return True

        if self._in.is_free:
            self._muxed.hand_on = hand_on
        else:
            self._muxed.most_window, self._muxed.most_taken = self._in.window, self._in.piece
        while True:
            while self._allowed <= 0 and not self._released.is_set():
                self._has_room = trio.Event()
                await self._has_room.wait()
            data = await self._muxed.take(min(READ_SIZE, self._in.piece))
            self._allowed -= len(data)
            feed(data)
            self._in.passed(len(data))
            await _rest(self._in)

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; False if that is impossible now. From the writer's thread, not during a `write`."""
        if self._out.rest or not self._muxed.write_now(data):
            return False
        self._out.passed(len(data))
        return True

    async def write(self, parts: Sequence[Buffer]) -> None:
        """Write all parts, as fast as the peer grants and our owner's rate allows."""
        for part in parts:
            for piece in self._out.pieces(part):
                await _rest(self._out)
                await self._muxed.write(piece)
                self._out.passed(len(piece))

    async def finish(self) -> None:
        """End our direction; what was written still arrives."""
        with suppress(Exception):  # the connection has ended, and the stream with it
            await self._muxed.close()
        if self._own_connection:
            with trio.move_on_after(OVER_LIMIT):
                await self._muxed.wait_over()
            await self._close_connection()

    async def reset(self) -> None:
        self._released.set()
        self._has_room.set()  # for `pump`, which finds the stream ended
        with suppress(Exception):
            await self._raw.reset()
        await self._close_connection()

    async def _close_connection(self) -> None:
        if self._own_connection and self._raw.swarm_conn is not None:
            await close_connections([self._raw.swarm_conn], "the stream that it was for has ended")

    async def wait_released(self) -> None:
        """Return when the stream was closed or reset here, or its connection ended."""
        async with trio.open_nursery() as nursery:
            for event in (self._released, cast(Muxer, self._muxed.muxed_conn).event_closed):
                nursery.start_soon(_cancel_after, nursery.cancel_scope, event)


async def _rest(pace: StreamPace) -> None:
    if seconds := pace.rest:
        await trio.sleep(seconds)


async def _cancel_after(scope: trio.CancelScope, event: trio.Event) -> None:
    await event.wait()
    scope.cancel()

"""Writing to a peer that does not read: the window is waited for, by virtual time, however long it is closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from shoal.protocol.errors import TransportError
from shoal.protocol.host import RawStream

MINUTE = 60.0  # libp2p's own writes give up after 5 seconds without window


class Muxed:
    """A libp2p stream of a peer that grants `send_window` bytes."""

    def __init__(self) -> None:
        self.send_window = 100_000
        self.closed = self.send_closed = False
        self.conn = SimpleNamespace(event_shutting_down=trio.Event())
        self.written = b""

    async def write(self, data: memoryview) -> None:
        assert len(data) <= self.send_window, "libp2p would wait for the rest, and give up"
        self.send_window -= len(data)
        self.written += data


def run(main: Any, muxed: Muxed) -> None:
    raw: Any = SimpleNamespace(muxed_stream=muxed)
    trio.run(main, RawStream(raw), clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_closed_window_is_waited_for() -> None:
    muxed, words = Muxed(), bytes(range(250)) * 1000

    async def main(stream: RawStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, [words])
            await trio.sleep(MINUTE)
            assert muxed.written == words[:100_000]
            muxed.send_window = 1
            await trio.sleep(MINUTE)
            assert muxed.written == words[:100_001]
            muxed.send_window = len(words)

    run(main, muxed)
    assert muxed.written == words


def test_the_wait_ends_with_the_stream() -> None:
    muxed = Muxed()

    async def main(stream: RawStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, stream)
            await trio.sleep(MINUTE)
            muxed.conn.event_shutting_down.set()

    run(main, muxed)
    assert len(muxed.written) == 100_000


async def _refused(stream: RawStream) -> None:
    with pytest.raises(TransportError, match="the stream ended"):
        await stream.write([bytes(200_000)])

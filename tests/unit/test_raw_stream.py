"""What comes on a stream is handed on before anybody asks for it, within bounds, until the stream ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.exceptions import MuxedStreamReset

from shoal.protocol.host import RawStream
from tests.unit.secured_kit import run


class Muxed:
    """A stream of a peer that sends without end."""

    def __init__(self) -> None:
        self.was_reset = False

    async def read(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.was_reset:
            raise MuxedStreamReset
        return b"x" * 100

    async def reset(self) -> None:
        self.was_reset = True


def test_no_more_is_handed_on_than_was_allowed_and_a_reset_ends_the_wait() -> None:
    async def test() -> None:
        muxed, came = Muxed(), list[bytes]()
        raw: Any = SimpleNamespace(muxed_stream=muxed, reset=muxed.reset, swarm_conn=None)
        stream = RawStream(raw)

        async def pump() -> None:
            with pytest.raises(MuxedStreamReset):
                await stream.pump(came.append)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            for allowed, handed_on in ((0, 0), (250, 3), (30, 3), (100, 4)):
                stream.allow(allowed)
                await trio.testing.wait_all_tasks_blocked()
                assert len(came) == handed_on
            await stream.reset()

    run(test)

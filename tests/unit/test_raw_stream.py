"""Bytes of a stream are read ahead, within bounds, before anybody asks for them, until the stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.exceptions import MuxedStreamReset

from shoal.protocol.net.libp2p.raw_stream import READ_SIZE, SHORTEST, RawStream
from tests.unit.secured_kit import run


class Muxed:
    """A stream of a peer that sends without end."""

    def __init__(self) -> None:
        self.was_reset = False

    async def take(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.was_reset:
            raise MuxedStreamReset
        return b"x" * 100

    async def reset(self) -> None:
        self.was_reset = True


def a_stream(muxed: Any, reset: Callable[[], Awaitable[None]], own_connection: Any = None) -> RawStream:
    connection = SimpleNamespace(get_transport_addresses=list)
    raw: Any = SimpleNamespace(muxed_stream=muxed, muxed_conn=connection, reset=reset, swarm_conn=own_connection)
    return RawStream(raw, own_connection is not None)


def test_no_more_is_handed_on_than_was_allowed_and_a_reset_ends_the_wait() -> None:
    async def test() -> None:
        muxed, came = Muxed(), list[bytes]()
        stream = a_stream(muxed, muxed.reset)

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


def test_what_comes_is_handed_on_at_once_if_that_is_allowed_and_not_much() -> None:
    async def test() -> None:
        async def take(most: int) -> None:
            await trio.sleep_forever()

        muxed, came = SimpleNamespace(take=take), list[bytes]()
        stream = a_stream(muxed, trio.sleep_forever)
        stream.allow(100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.pump, came.append)
            await trio.testing.wait_all_tasks_blocked()
            assert not muxed.hand_on(bytes(READ_SIZE + 1)), "a peer may send megabytes in one frame"
            assert muxed.hand_on(bytes(90))
            assert muxed.hand_on(bytes(90))
            assert not muxed.hand_on(bytes(SHORTEST))
            stream.allow(100)
            assert not muxed.hand_on(bytes(SHORTEST - 1)), "single bytes are not worth a way to the other thread each"
            assert muxed.hand_on(bytes(SHORTEST))
            assert list(map(len, came)) == [90, 90, SHORTEST]
            nursery.cancel_scope.cancel()

    run(test)


def test_who_serves_a_stream_that_was_reset_is_released_though_the_peer_takes_nothing() -> None:
    async def test() -> None:
        stream = a_stream(SimpleNamespace(muxed_conn=SimpleNamespace(event_closed=trio.Event())), trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.reset)
            await stream.wait_released()
            nursery.cancel_scope.cancel()

    run(test)


def test_a_connection_of_its_own_ends_with_the_stream_when_the_peer_has_read_all_of_it() -> None:
    async def test() -> None:
        is_over, is_closed, said = trio.Event(), trio.Event(), list[str]()

        async def close() -> None:
            is_closed.set()

        muxed = SimpleNamespace(close=trio.lowlevel.checkpoint, wait_over=is_over.wait)
        connection = SimpleNamespace(close=close, muxed_conn=SimpleNamespace(ends_because=said.append))
        stream = a_stream(muxed, trio.lowlevel.checkpoint, connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.finish)
            await trio.testing.wait_all_tasks_blocked()
            assert not is_closed.is_set()
            is_over.set()
            await is_closed.wait()
        assert said == ["the stream that it was for has ended"]

    run(test)

"""A stream as asyncio sees it: an immediate write never overtakes one under way, or one that was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.transport.transport import STEP, Stream


class Raw:
    """The other side of the bridge, and the bridge."""

    is_open = True

    def __init__(self) -> None:
        self.data, self.allowed = b"", 0
        self.may_write = asyncio.Event()

    def begin(self, function: Callable[..., Awaitable[None]], *args: object) -> asyncio.Future[None]:
        """Like the real one, it does not stop what it has begun."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            await function(*args)
            if not outcome.done():
                outcome.set_result(None)

        self.task = asyncio.ensure_future(carry())
        return outcome

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        asyncio.ensure_future(function(*args))  # noqa: RUF006

    def post(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    async def write(self, parts: tuple[bytes, ...]) -> None:
        await self.may_write.wait()
        self.data += b"".join(parts)

    def write_now(self, data: bytes) -> bool:
        self.data += data
        return True

    def allow(self, more: int) -> None:
        self.allowed += more

    async def reset(self) -> None:
        self.is_open = False


def a_stream(raw: Any) -> Stream:
    return Stream(raw, raw)


@pytest.mark.asyncio
async def test_nothing_overtakes_a_write_that_is_under_way() -> None:
    raw = Raw()
    stream = a_stream(raw)
    slow = asyncio.create_task(stream.write(b"a", b"b"))
    await asyncio.sleep(0)
    assert not stream.write_now(b"c")
    raw.may_write.set()
    await slow
    assert stream.write_now(b"c")
    assert raw.data == b"abc"


@pytest.mark.asyncio
async def test_a_write_that_was_given_up_goes_on_so_nothing_may_get_into_the_middle_of_it() -> None:
    raw = Raw()
    stream = a_stream(raw)
    slow = asyncio.create_task(stream.write(b"a", b"b"))
    await asyncio.sleep(0)
    slow.cancel()
    with suppress(asyncio.CancelledError):
        await slow
    assert not stream.write_now(b"c")
    raw.may_write.set()
    await stream.write(b"d")
    assert not stream.write_now(b"e"), "whether the first has come to its end is not known"
    assert raw.data == b"abd"


def test_small_steps_are_not_passed_on() -> None:
    raw: Any = type("Raw", (Raw,), {"__init__": lambda self: None, "allowed": 0})()
    stream = a_stream(raw)
    for upto in (STEP, STEP + 1, 2 * STEP - 1, 2 * STEP, 2 * STEP + 5):
        stream.allow(upto)
        assert raw.allowed == upto // STEP * STEP


@pytest.mark.asyncio
async def test_a_reset_ends_a_write_that_would_wait_for_ever() -> None:
    """The socket of a dead machine takes nothing more, and says so after minutes."""
    raw = Raw()
    stream = a_stream(raw)
    slow = asyncio.create_task(stream.write(b"a"))
    await asyncio.sleep(0)
    stream.reset()
    with pytest.raises(TransportError, match="reset"):
        async with asyncio.timeout(10):
            await slow
    assert not raw.is_open

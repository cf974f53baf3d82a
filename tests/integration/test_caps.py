"""Networks on loopback whose owners have set rates: these hold, in either direction, and words do not feel them.

What the interface itself counts is in tests/netlab/test_caps.py: the loopback of a machine is used by others, too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal.protocol.net.system.throttle import BURST, HEADERS, SEGMENT, RateLimit
from tests.integration.test_network import MIB, RUN, Load, Node, Word, eventually, running

RATE = 2_000_000  # bytes a second
SIZE = 1_000_000
BARE = SEGMENT / (SEGMENT + HEADERS)
USED = 0.7  # of the rate, at least, on a machine that is busy
SOON = 0.5  # seconds: a payload that waits takes that long at this rate, and at least eight of them wait


@asynccontextmanager
async def connected(*, up: float | None = None, down: float | None = None) -> AsyncIterator[tuple[Node, Node]]:
    """Two networks; the first sends no faster than `up`, the second takes no faster than `down`."""
    a, b = Node(), Node()
    a.throttle.up.cap(up)
    b.throttle.down.cap(down)
    async with running(a, b):
        await a.connect(b.addresses()[0])
        b.knows(a)
        await eventually(lambda: b.changes)
        yield a, b


def send(a: Node, b: Node, loads: int) -> None:
    payload = memoryview(bytes(SIZE))
    for number in range(loads):
        a.send(b.peer, RUN, Load(number, payload))  # type: ignore[arg-type]


async def rate_of(flow: RateLimit, seconds: float) -> float:
    begin, before = time.monotonic(), flow.total
    await eventually(lambda: time.monotonic() - begin >= seconds)
    return (flow.total - before) / (time.monotonic() - begin)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_rate_holds_and_is_used(way: str) -> None:
    async with connected(**{way: RATE}) as (a, b):
        send(a, b, 12)
        await eventually(lambda: len(b.loads) >= 2)
        begin, first = time.monotonic(), len(b.loads)
        await eventually(lambda: len(b.loads) >= first + 8)
        passed = (len(b.loads) - first) * SIZE / BARE / (time.monotonic() - begin)
        print(f"\n{way}: {passed / RATE:.3f} of the rate, by what has arrived")
        assert USED * RATE < passed < 1.05 * RATE
        assert b.loads == list(range(len(b.loads)))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["up", "down"])
async def test_words_do_not_wait_while_the_rate_is_used_up(way: str) -> None:
    async with connected(**{way: RATE}) as (a, b):
        send(a, b, 16)
        await eventually(lambda: b.loads)
        times = []
        for number in range(20):
            begin = time.monotonic()
            a.send(b.peer, RUN, Word(number))
            await eventually(lambda number=number: number in b.words)  # type: ignore[misc]
            times.append(time.monotonic() - begin)
        print(f"\n{way}: words took {1e3 * sorted(times)[10]:.1f} ms, {1e3 * max(times):.1f} at most")
        assert len(b.loads) < 16, "the payloads were meant to be still on their way"
        assert sorted(times)[10] < 0.5 * SOON
        assert max(times) < 4 * SOON


@pytest.mark.asyncio
async def test_all_peers_together_keep_to_one_rate() -> None:
    a, others = Node(), [Node() for _ in range(3)]
    a.throttle.up.cap(RATE)
    async with running(a, *others):
        for each in others:
            await a.connect(each.addresses()[0])
            send(a, each, 8)
        await eventually(lambda: all(each.loads for each in others))
        passed = await rate_of(a.throttle.up, 3.0)
        arrived = [len(each.loads) for each in others]
        print(f"\nto three: {passed / RATE:.3f} of the rate; payloads {arrived}")
        assert USED * RATE < passed < 1.05 * RATE
        assert max(arrived) - min(arrived) <= 2, "each gets its turn"


@pytest.mark.asyncio
async def test_a_rate_of_one_direction_leaves_the_other_alone() -> None:
    async with connected(up=RATE) as (a, b):
        send(a, b, 12)
        await eventually(lambda: b.loads)
        begin = time.monotonic()
        send(b, a, 12)
        await eventually(lambda: len(a.loads) == 12)
        assert 12 * SIZE / (time.monotonic() - begin) > 2 * RATE


@pytest.mark.asyncio
async def test_what_passes_is_counted_at_both_ends() -> None:
    async with connected() as (a, b):
        begun = a.throttle.total, b.throttle.total
        assert min(begun) > 0, "the handshake and the first words"
        a.send(b.peer, RUN, Load(1, memoryview(bytes(8 * MIB))))  # type: ignore[arg-type]
        await eventually(lambda: b.loads == [1])
        for node, before in zip((a, b), begun, strict=True):
            assert node.throttle.total - before == pytest.approx(8 * MIB / BARE, rel=0.03)
        assert a.throttle.up.total > 20 * a.throttle.down.total


@pytest.mark.asyncio
async def test_after_a_silence_a_payload_that_fits_into_the_burst_leaves_at_once() -> None:
    async with connected(up=RATE) as (a, b):
        begin = time.monotonic()
        a.send(b.peer, RUN, Load(1, bytes(int(BURST * RATE / 4))))
        await eventually(lambda: b.loads == [1])
        assert time.monotonic() - begin < SOON

"""The thread and its readers: bounded queues, cancelled requests, errors, and an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from shoal.node.inference.engine.engine import Busy, Engine, Stopping, Ticket
from shoal.node.inference.engine.sequence import Delta
from shoal.node.inference.scorer import LogProbs, Piece
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.protocol.base.errors import TransportError
from tests.unit.serve.kit import Script, counting, job

pytestmark = pytest.mark.asyncio


class Gated(Script):
    """A scorer that takes a step each time it is let."""

    def __init__(self, **settings: int) -> None:
        super().__init__(counting, **settings)
        self.gate = threading.Semaphore(0)

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        assert self.gate.acquire(timeout=10)
        return super().extend(pieces)


@asynccontextmanager
async def running(scorer: Script, **settings: int) -> AsyncIterator[Engine]:
    engine = Engine(scorer, ByteVocabulary(), **settings)
    try:
        yield engine
    finally:
        if isinstance(scorer, Gated):
            scorer.gate.release(10_000)
        await engine.stop()


async def text_of(ticket: Ticket) -> str:
    return "".join([delta.text async for came in ticket.deltas() for _, delta in came])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


async def test_many_at_once_each_get_their_own() -> None:
    async with running(Script(counting, slots=3), waiting=100) as engine:
        tickets = [engine.submit([job(chr(97 + number), 20 + number)]) for number in range(20)]
        texts = await asyncio.gather(*map(text_of, tickets))
        for number, text in enumerate(texts):
            assert len(text) == 20 + number
            assert text[0] == chr(98 + number)
        load = engine.load()
        assert (load.busy, load.waiting, load.finished, load.broken) == (0, 0, 20, 0)
        assert load.tokens == sum(map(len, texts))


async def test_a_ticket_of_several_tells_which_is_which() -> None:
    async with running(Script(counting)) as engine:
        ticket = engine.submit([job("a", 3), job("m", 2)])
        parts = [pair async for came in ticket.deltas() for pair in came]
        texts = ["".join(delta.text for place, delta in parts if place == each) for each in (0, 1)]
        assert texts == ["bcd", "no"]


async def test_beyond_the_bound_it_is_busy_and_afterwards_not() -> None:
    scorer = Gated(slots=2)
    async with running(scorer, waiting=3) as engine:
        tickets = [engine.submit([job("a", 2)]) for _ in range(5)]
        with pytest.raises(Busy) as refused:
            engine.submit([job("a", 2)])
        assert 1 <= refused.value.retry_after <= 60
        scorer.gate.release(100)
        assert await asyncio.gather(*map(text_of, tickets)) == ["bc"] * 5
        assert await text_of(engine.submit([job("a", 2)])) == "bc"


async def test_who_cancels_frees_its_slot_and_its_place_in_the_queue() -> None:
    scorer = Gated(slots=1)
    async with running(scorer, waiting=5) as engine:
        first, second, third = (engine.submit([job("a", 50)]) for _ in range(3))
        await until(lambda: engine.load().busy == 1)
        second.cancel()
        first.cancel()
        scorer.gate.release(1)  # of the step that is under way
        await until(lambda: engine.load().waiting == 0)
        assert engine.load().busy == 1
        scorer.gate.release(100)
        assert len(await text_of(third)) == 50
        await until(lambda: engine.load().busy == 0)
        assert scorer.held == {}
        assert engine.load().broken == 1


async def test_who_does_not_read_is_bounded_and_slows_nobody() -> None:
    async with running(Script(counting, slots=2), room=8) as engine:
        sleeper = engine.submit([job("a", 1000)])
        assert len(await text_of(engine.submit([job("a", 500)]))) == 500
        assert sleeper.given - sleeper.taken == 8
        assert engine.load().busy == 1
        assert len(await text_of(sleeper)) == 1000, "once it is read, it goes on"


async def test_an_error_reaches_its_reader_after_what_came_before() -> None:
    scorer = Gated()
    async with running(scorer) as engine:
        ticket, parts = engine.submit([job("a", 50)]), list[tuple[int, Delta]]()
        scorer.gate.release(3)
        await until(lambda: len(scorer.calls) == 3)
        scorer.failure = TransportError("the expert is gone")
        scorer.gate.release(1)

        async def read() -> None:
            async for came in ticket.deltas():
                parts.extend(came)

        with pytest.raises(TransportError, match="expert"):
            await read()
        assert len(parts) == 3
        scorer.gate.release(100)
        assert await text_of(engine.submit([job("a", 2)])) == "bc"


async def test_an_idle_engine_waits_without_work() -> None:
    scorer = Script(counting)
    async with running(scorer) as engine:
        assert await text_of(engine.submit([job("a", 2)])) == "bc"
        calls = len(scorer.calls)
        await asyncio.sleep(0.05)
        assert len(scorer.calls) == calls == 2


async def test_a_stop_tells_all_readers_and_ends_the_thread() -> None:
    scorer = Gated(slots=1)
    engine = Engine(scorer, ByteVocabulary())
    tickets = [engine.submit([job("a", 100)]) for _ in range(3)]
    ends: list[Awaitable[str]] = [asyncio.ensure_future(text_of(ticket)) for ticket in tickets]
    scorer.gate.release(2)
    await engine.stop()
    results = await asyncio.gather(*ends, return_exceptions=True)
    assert [type(each) for each in results] == [Stopping] * 3
    assert not [each for each in threading.enumerate() if each.name == "engine"]
    with pytest.raises(Stopping):
        engine.submit([job()])

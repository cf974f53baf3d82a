"""An expert that answers: to any question it answers, is busy, or names a peer that asks what no honest one asks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node.experts.questions import MAX_FRAME
from shoal.node.inference.remote.answering.server import ExpertServer
from shoal.node.inference.remote.rows import MOST_ROWS, unpack
from shoal.node.inference.scorer import Piece, Scorer
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.wire import Message, decode
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays, Verdict
from shoal.protocol.messages.node import Refused
from tests.unit.asking.kit import ANNA, BOB, FILE, ME
from tests.unit.serve.ensemble.kit import VOCAB, Unigram, tiny_expert


@asynccontextmanager
async def opened(expert: Scorer, each: int = 3) -> AsyncIterator[ExpertServer]:
    server = ExpertServer(expert, each)
    task = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.wait([task])


def question(*additions: Addition, ended: tuple[int, ...] = ()) -> AskExpert:
    return AskExpert(FILE, 1, ended, additions)


async def says(server: ExpertServer, asked: AskExpert) -> Message:
    return decode(await asyncio.wait_for(server.ask(ANNA, asked), 20))


@pytest.mark.asyncio
async def test_peers_that_ask_at_once_share_a_call_and_have_their_own_answers() -> None:
    expert, same = Unigram(a=0.5, b=0.4), tiny_expert(3)
    async with opened(expert) as server:
        first = asyncio.create_task(server.ask(ANNA, question(Addition(1, 0, (97, 98), True))))
        second = asyncio.create_task(
            server.ask(BOB, question(Addition(1, 0, (97,), False), Addition(2, 0, (1,), True)))
        )
        said = [decode(each) for each in await asyncio.gather(first, second)]
    assert [len(each.rows) for each in said if isinstance(each, ExpertSays)] == [4 * VOCAB, 4 * VOCAB]
    assert isinstance(said[0], ExpertSays)
    assert said[0].scores[0].within == pytest.approx(np.log(0.4), abs=1e-6)
    assert len(expert.calls) == 1
    async with opened(tiny_expert(3)) as server:
        answer = await says(server, question(Addition(1, 0, (5, 6), True)))
        assert isinstance(answer, ExpertSays)
        row = unpack(answer.rows, 1, VOCAB, ANNA)[0]
        np.testing.assert_allclose(row, same.extend([Piece(0, (5, 6))], within=True).rows[0], atol=2e-5)


@pytest.mark.asyncio
async def test_a_model_that_fails_costs_its_texts_and_nothing_else() -> None:
    expert = Unigram(a=1)
    async with opened(expert) as server:
        await says(server, question(Addition(1, 0, (1,), True)))
        expert.fails = lambda: MemoryError("no room")
        with pytest.raises(LocalError, match="MemoryError"):
            await says(server, question(Addition(1, 1, (1,), True)))
        expert.fails = lambda: None
        answer = await says(server, question(Addition(1, 1, (1,), True), Addition(2, 0, (1,), True)))
        assert isinstance(answer, ExpertSays)
        assert [each.verdict for each in answer.scores] == [Verdict.FORGOTTEN, Verdict.SCORED]


@pytest.mark.asyncio
async def test_numbers_that_are_none_are_told_apart() -> None:
    expert = Unigram(a=1)
    async with opened(expert) as server:
        expert.row[:] = np.nan
        answer = await says(server, question(Addition(1, 0, (1,), True)))
        assert isinstance(answer, ExpertSays)
        assert (answer.scores[0].verdict, answer.rows, server.texts) == (Verdict.NO_NUMBERS, b"", 0)


@pytest.mark.asyncio
async def test_a_token_that_is_none_is_the_askers_fault() -> None:
    async with opened(Unigram()) as server:
        with pytest.raises(RemoteError, match=f"beyond {VOCAB}") as caught:
            await says(server, question(Addition(1, 0, (VOCAB,), True)))
        assert caught.value.peer == ANNA


@pytest.mark.asyncio
async def test_nobody_is_told_more_at_once_than_a_frame_holds() -> None:
    """Else one question would make the node hang up on its own process."""
    expert = Unigram(slots=64)
    expert.vocab, expert.row = 131_072, np.full(131_072, np.log(1 / 131_072), np.float32)
    most = tuple(Addition(text, 0, (1,), True) for text in range(4))
    async with opened(expert, each=64) as server:
        answer = await server.ask(ANNA, question(*most))
        assert MOST_ROWS <= len(answer) < MAX_FRAME
        many = tuple(Addition(text, 0, (1,), True) for text in range(10, 50))
        with pytest.raises(RemoteError, match="at once") as caught:
            await says(server, question(*many))
        assert caught.value.peer == ANNA
        unwanted = tuple(Addition(text, 0, (1,), False) for text in range(10, 50))
        assert isinstance(await says(server, question(*unwanted)), ExpertSays)


@pytest.mark.asyncio
async def test_a_text_that_ends_while_its_question_waits_takes_no_slot() -> None:
    """As one does whose asker has heard another peer first."""
    expert, free = Unigram(a=1), threading.Event()
    expert.fails = lambda: None if free.wait(20) else TimeoutError()
    async with opened(expert) as server:
        working = asyncio.create_task(says(server, question(Addition(1, 0, (1,), True))))
        async with asyncio.timeout(20):
            while not expert.calls:
                await asyncio.sleep(0.002)
        late = asyncio.create_task(says(server, question(Addition(2, 0, (1,), True), Addition(3, 0, (1,), True))))
        await asyncio.sleep(0)
        await says(server, question(ended=(2,)))
        await says(server, AskExpert(FILE, 2, (3,), ()))  # of another process, which has its own names
        free.set()
        await working
        answer = await late
        assert isinstance(answer, ExpertSays)
        assert [each.verdict for each in answer.scores] == [Verdict.FORGOTTEN, Verdict.SCORED]
        assert server.texts == 2


@pytest.mark.asyncio
async def test_who_waits_when_an_expert_ends_is_told() -> None:
    expert, free = Unigram(a=1), threading.Event()
    expert.fails = lambda: None if free.wait(20) else TimeoutError()
    async with opened(expert) as server:
        asked = [asyncio.create_task(says(server, question(Addition(each, 0, (1,), True)))) for each in range(2)]
        async with asyncio.timeout(20):
            while not expert.calls:
                await asyncio.sleep(0.002)
    free.set()
    assert all(isinstance(each, Refused) for each in await asyncio.gather(*asked))
    assert isinstance(await says(server, question(Addition(5, 0, (1,), True))), Refused)


TEXTS, HELD = st.integers(0, 4), st.integers(0, 6)
TOKENS = st.lists(st.integers(0, VOCAB + 1), max_size=4).map(tuple)
ADDITIONS = st.lists(st.builds(Addition, TEXTS, HELD, TOKENS, st.booleans()), max_size=4).map(tuple)
QUESTIONS = st.builds(AskExpert, st.just(FILE), st.integers(0, 2), st.lists(TEXTS, max_size=3).map(tuple), ADDITIONS)


@given(st.lists(st.tuples(st.sampled_from([ANNA, BOB, ME]), QUESTIONS), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_strangers_may_ask_anything(asked: list[tuple[str, AskExpert]]) -> None:
    """All at once: each is answered, in full, or is blamed; and an honest text is not disturbed."""

    async def play() -> None:
        expert = Unigram(slots=4, limit=8, a=0.9)
        async with opened(expert, each=2) as server:
            asking = [asyncio.create_task(server.ask(peer, each)) for peer, each in asked]  # type: ignore[arg-type]
            for (_, each), task in zip(asked, asking, strict=True):
                with contextlib.suppress(RemoteError):
                    answer = decode(await asyncio.wait_for(task, 20))
                    assert isinstance(answer, ExpertSays | Later)
                    if isinstance(answer, ExpertSays):
                        assert len(answer.scores) == len(each.additions)
            assert server.texts <= 4
            held = sorted(len(tokens) for tokens in expert.held.values())
            assert all(count <= 8 for count in held)

    asyncio.run(play())

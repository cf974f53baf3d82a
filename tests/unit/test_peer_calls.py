"""Calls to one peer: which of them fail when a stream is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shoal.protocol.base.errors import LOST, TransportError
from shoal.protocol.base.frames import Kind
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.node import GetManifest
from shoal.protocol.net.peers.calls import Calls

DEADLINE = 10.0
LOSS = TransportError("a connection is lost", LOST)


class Questions:
    """Takes the frames of calls; a test says when one has been written."""

    def __init__(self) -> None:
        self.written: list[Callable[[], None]] = []
        self.calls = Calls(PeerId("b"), self.put, asyncio.ensure_future, lambda peer, message: message)

    def put(
        self,
        kind: Kind,
        number: int,
        body: bytes,
        lost: Callable[[TransportError], None] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        assert sent is not None
        self.written.append(sent)

    def ask(self, timeout: float = DEADLINE) -> asyncio.Task[object]:
        return asyncio.ensure_future(self.calls.ask(GetManifest("x"), timeout))


@pytest.mark.asyncio
async def test_the_loss_of_a_stream_fails_the_calls_that_were_written_and_no_other() -> None:
    questions = Questions()
    first, second = questions.ask(), questions.ask()
    await asyncio.sleep(0)
    questions.written[0]()
    questions.calls.lose_written(LOSS)
    with pytest.raises(TransportError, match="is lost"):
        await first
    assert not second.done()
    questions.calls.lose_written(LOSS)
    assert not second.done()
    questions.calls.lose(LOSS)
    with pytest.raises(TransportError, match="is lost"):
        await second


@pytest.mark.asyncio
async def test_a_call_that_is_written_after_it_was_given_up_is_no_open_call() -> None:
    questions = Questions()
    late, other = questions.ask(0.0), questions.ask()
    with pytest.raises(TransportError, match="no answer"):
        await late
    for written in questions.written:
        written()
    questions.calls.lose_written(LOSS)
    with pytest.raises(TransportError, match="is lost"):
        await other

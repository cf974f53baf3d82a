"""A node's proxy: questions of other processes over its socket, to peers over a fake network."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.node.experts import proxy as module
from shoal.node.experts.proxy import PER_PEER, ExpertProxy
from shoal.node.experts.questions import STEP, Offer, send
from shoal.node.inference.remote.connection import NodeConnection
from shoal.node.ipc.private_socket import PrivateSocket
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, decode, encode
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.experts import Addition, AskExpert, ExpertSays
from shoal.protocol.messages.node import GetManifest, Refused
from tests.unit.asking.kit import ANNA, BOB, FILE, ME

QUESTION = AskExpert(FILE, 1, (), (Addition(1, 0, (5,), True),))
SAID = ExpertSays((), b"said")


class Wire:
    """The network as a proxy uses it."""

    peer = ME

    def __init__(self) -> None:
        self.answer: Message | Exception = SAID
        self.met: list[tuple[PeerId, float]] = []

    async def meet(self, peer: PeerId, timeout: float) -> None:
        self.met.append((peer, timeout))
        if isinstance(self.answer, Exception):
            raise self.answer

    async def call(self, peer: PeerId, message: Message, timeout: float) -> Message:
        assert (peer, message) == (BOB, QUESTION)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@asynccontextmanager
async def board(folder: Path, **hears: Any) -> AsyncIterator[tuple[ExpertProxy, Wire]]:
    wire = Wire()
    made = ExpertProxy(wire, folder, **hears)  # type: ignore[arg-type]
    await made.start()
    try:
        yield made, wire
    finally:
        await made.close()


@asynccontextmanager
async def process(
    where: ExpertProxy, answer: Any = None, lost: Any = lambda peer: None
) -> AsyncIterator[NodeConnection]:
    """A connected process, which answers if `answer` is given."""
    connection = NodeConnection(lambda: where.path, answer, lost)
    try:
        if answer is not None:
            await connection.offer(Offer((FILE,)))
            await until(lambda: where.answers(FILE))
        yield connection
    finally:
        await connection.close()


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.002)


async def says(peer: PeerId, body: bytes) -> bytes:
    assert decode(body) == QUESTION
    return encode(SAID)


@pytest.mark.asyncio
async def test_a_peers_question_goes_to_the_process_that_answers_for_the_file(tmp_path: Path) -> None:
    heard: list[bool] = []

    def hear() -> None:
        heard.append(proxy.answers(FILE))

    proxy: ExpertProxy
    async with board(tmp_path, on_offer=hear) as (proxy, _):
        assert os.stat(proxy.path).st_mode & 0o077 == 0
        refused = await proxy.on_call(ANNA, QUESTION)
        assert isinstance(refused, Refused)
        async with process(proxy, says):
            assert await proxy.on_call(ANNA, QUESTION) == SAID
        await until(lambda: len(heard) == 2)
        assert heard == [True, False]
        assert isinstance(await proxy.on_call(ANNA, QUESTION), Refused)
    assert not Path(proxy.path or tmp_path / "experts.sock").exists()


@pytest.mark.asyncio
async def test_a_process_asks_peers_and_this_node(tmp_path: Path) -> None:
    async with board(tmp_path) as (proxy, wire), process(proxy) as connection:
        assert await connection.call(BOB, QUESTION, 5) == SAID
        wire.answer = TransportError("no connection")
        with pytest.raises(TransportError, match="no connection"):
            await connection.call(BOB, QUESTION, 5)
        wire.answer = RemoteError("refused our call", BOB)
        with pytest.raises(RemoteError, match="refused our call") as caught:
            await connection.call(BOB, QUESTION, 5)
        assert (caught.value.peer, str(caught.value).count("bob")) == (BOB, 1)
        wire.answer = ZeroDivisionError()
        with pytest.raises(LocalError, match="ZeroDivisionError"):
            await connection.call(BOB, QUESTION, 5)
        with pytest.raises(LocalError, match="only experts"):
            await connection.call(BOB, GetManifest("ab" * 8), 5)
        async with process(proxy, says):
            assert await connection.call(ME, QUESTION, 5) == SAID


@pytest.mark.asyncio
async def test_it_says_whose_connection_is_in_use(tmp_path: Path) -> None:
    used: list[PeerId] = []
    async with board(tmp_path, on_use=used.append) as (proxy, _), process(proxy, says) as connection:
        await connection.call(BOB, QUESTION, 5)
        await proxy.on_call(ANNA, QUESTION)
        assert used == [BOB, ANNA]


@pytest.mark.asyncio
async def test_a_process_that_dies_fails_what_it_was_asked(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def never(peer: PeerId, body: bytes) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    async with board(tmp_path) as (proxy, _):
        async with process(proxy, never):
            asked = asyncio.create_task(proxy.on_call(ANNA, QUESTION))
            await begun.wait()
        answer = await asyncio.wait_for(asked, 20)
        assert isinstance(answer, Refused)
        assert "is gone" in answer.reason


@pytest.mark.asyncio
async def test_one_peer_does_not_take_all_lines(tmp_path: Path) -> None:
    free = asyncio.Event()

    async def slowly(peer: PeerId, body: bytes) -> bytes:
        await free.wait()
        return encode(SAID)

    async with board(tmp_path) as (proxy, _), process(proxy, slowly):
        asked = [asyncio.create_task(proxy.on_call(ANNA, QUESTION)) for _ in range(PER_PEER + 3)]
        bobs = asyncio.create_task(proxy.on_call(BOB, QUESTION))
        await until(lambda: sum(each.done() for each in asked) == 3)
        assert not bobs.done()
        free.set()
        answers = await asyncio.gather(*asked)
        assert await bobs == SAID
        assert sum(isinstance(each, Later) for each in answers) == 3
        assert await proxy.on_call(ANNA, QUESTION) == SAID


@pytest.mark.asyncio
async def test_a_question_that_is_too_large_does_not_reach_the_process(tmp_path: Path) -> None:
    async with board(tmp_path) as (proxy, _), process(proxy, says):
        large = AskExpert(FILE, 1, (), (Addition(1, 0, (5,) * (STEP + 1), True),))
        with pytest.raises(RemoteError) as caught:
            await proxy.on_call(ANNA, large)
        assert caught.value.peer == ANNA


@pytest.mark.asyncio
async def test_a_process_names_the_peer_that_has_asked_what_it_must_not(tmp_path: Path) -> None:
    async def blames(peer: PeerId, body: bytes) -> bytes:
        raise RemoteError("asks about a token that is none", peer)

    async with board(tmp_path) as (proxy, _), process(proxy, blames):
        with pytest.raises(RemoteError, match="token that is none") as caught:
            await proxy.on_call(ANNA, QUESTION)
        assert caught.value.peer == ANNA


@pytest.mark.asyncio
async def test_processes_hear_of_peers_that_are_gone(tmp_path: Path) -> None:
    lost: list[PeerId] = []
    async with board(tmp_path) as (proxy, _), process(proxy, says, lost.append):
        proxy.link(BOB, True)
        proxy.link(ANNA, False)
        await until(lambda: lost == [ANNA])


@pytest.mark.asyncio
async def test_a_process_has_peers_met_until_it_hears_that_they_are_gone(tmp_path: Path) -> None:
    async with board(tmp_path) as (proxy, wire), process(proxy) as connection:
        wire.answer = TransportError("no way there")
        with pytest.raises(TransportError, match="no way there"):
            await connection.meet(BOB, 3)
        assert not connection.is_met(BOB)
        wire.answer = SAID
        for _ in range(2):
            await connection.meet(BOB, 5)
            assert connection.is_met(BOB)
        await connection.meet(ME, 5)
        assert wire.met == [(BOB, 3), (BOB, 5)], "whom we have met is not met again, and we are with ourselves"
        proxy.link(BOB, False)
        await until(lambda: not connection.is_met(BOB))
        await connection.meet(BOB, 5)
        assert wire.met[2:] == [(BOB, 5)]
    await until(lambda: not connection.is_met(BOB))


@pytest.mark.asyncio
async def test_a_process_that_talks_nonsense_is_hung_up_on(tmp_path: Path) -> None:
    async with board(tmp_path) as (proxy, _), process(proxy, says):
        for nonsense in (b"\xff" * 8, b"\0\0\0\2{}", len(encode(SAID)).to_bytes(4, "big") + encode(SAID)):
            reader, writer = await asyncio.open_unix_connection(proxy.path)
            writer.write(nonsense)
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
        assert await proxy.on_call(ANNA, QUESTION) == SAID


@pytest.mark.asyncio
async def test_a_line_is_made_again_after_the_node_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAME", "s")
    async with board(tmp_path) as (first, _):
        path = first.path
        connection = NodeConnection(lambda: path)
        assert await connection.call(BOB, QUESTION, 5) == SAID
    await asyncio.wait_for(connection.gone.wait(), 20)
    with pytest.raises(TransportError, match="no node"):
        await connection.call(BOB, QUESTION, 5)
    async with board(tmp_path):
        assert await connection.call(BOB, QUESTION, 5) == SAID
        await connection.close()


@pytest.mark.asyncio
async def test_a_process_that_is_stopped_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.001)
    monkeypatch.setattr(module, "UNREAD", 1 << 16)
    large = AskExpert(FILE, 1, tuple(range(1000, 4000)), QUESTION.additions)
    async with board(tmp_path) as (proxy, _):
        _, writer = await asyncio.open_unix_connection(proxy.path)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        send(writer, Offer((FILE,)))
        await until(lambda: proxy.answers(FILE))
        for _ in range(1000):
            refused = await proxy.on_call(ANNA, large)
            assert isinstance(refused, Refused)
            if "stopped taking" in refused.reason:
                break
        assert "stopped taking" in str(refused)
        proxy.link(ANNA, False)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while "stopped taking" in str(await proxy.on_call(ANNA, QUESTION)):
                await asyncio.sleep(0.002)
        writer.close()


@pytest.mark.asyncio
async def test_processes_are_let_in_again_after_the_node_had_too_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.ipc.private_socket.PAUSE", 0.01)
    accept, failures = PrivateSocket.accept, [OSError(24, "Too many open files")]

    async def scarce(listening: PrivateSocket) -> socket.socket:
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(PrivateSocket, "accept", scarce)
    async with board(tmp_path) as (proxy, _), process(proxy, says):
        assert await proxy.on_call(ANNA, QUESTION) == SAID
    assert not failures


@pytest.mark.asyncio
async def test_a_node_that_can_make_no_socket_goes_on_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with board(tmp_path / "nowhere") as (proxy, _):
        assert proxy.path == ""
        assert isinstance(await proxy.on_call(ANNA, QUESTION), Refused)
        await until(lambda: "no socket can be made" in caplog.text)

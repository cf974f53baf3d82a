"""The server within this process: clients that never read, failures in the middle of a stream."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from shoal.node.inference.http.server import ListenOptions, listen, serving
from shoal.protocol.base.errors import LocalError, TransportError
from tests.unit.serve.kit import Script, counting, served

pytestmark = pytest.mark.asyncio


def url(port: int, path: str = "completions") -> str:
    return f"http://127.0.0.1:{port}/v1/{path}"


def body(tokens: int, **more: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": "a", "max_tokens": tokens, "stream": True, "ignore_eos": True, **more}


async def busy(session: aiohttp.ClientSession, port: int) -> int:
    async with session.get(url(port, "models")) as answer:
        return int((await answer.json())["data"][0]["shoal"]["busy"])


async def test_who_never_reads_is_cut_off_and_slows_nobody() -> None:
    scorer = Script(counting, slots=2)
    async with serving(served(scorer), ListenOptions(port=0, stall=0.5)) as port, aiohttp.ClientSession() as session:
        sleeper = socket.socket()
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.connect(("127.0.0.1", port))
        text = json.dumps(body(100_000 - 1)).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sleeper.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        async with asyncio.timeout(30):
            while await busy(session, port) == 0:
                await asyncio.sleep(0.001)
            async with session.post(url(port), json=body(300, stream=False)) as answer:
                assert (await answer.json())["usage"]["completion_tokens"] == 300
            while await busy(session, port):
                await asyncio.sleep(0.01)
        written = sum(len(call) for call in scorer.calls)
        assert written < 50_000, "it was not written to its end"
        sleeper.close()


async def test_a_failure_in_the_middle_of_a_stream_is_said_in_it() -> None:
    scorer = Script(counting, slots=2)

    def failing(held: list[int]) -> int:
        if len(held) == 20:
            raise TransportError("an expert is gone")
        return counting(held)

    scorer._rule = failing
    async with serving(served(scorer), ListenOptions(port=0)) as port, aiohttp.ClientSession() as session:
        async with session.post(url(port), json=body(50)) as answer:
            events = (await answer.text()).strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["message"] == "an expert is gone"
        assert "[DONE]" not in events[-1]
        async with session.post(url(port), json=body(50, stream=False)) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "network")
        assert await busy(session, port) == 0


async def test_who_asks_for_more_than_may_ever_wait_is_not_told_to_come_again() -> None:
    async with (
        serving(served(Script(counting, slots=2)), ListenOptions(port=0, waiting=1)) as port,
        aiohttp.ClientSession() as session,
    ):
        for more, status in (({"n": 3}, 200), ({"n": 4}, 400), ({"n": 2, "prompt": ["a", "b"]}, 400)):
            async with session.post(url(port), json=body(2, **more) | {"stream": False}) as answer:
                assert answer.status == status
                said = await answer.json()
        assert said["error"]["param"] == "n"
        assert said["error"]["message"] == "'n' asks for 4 texts at once: at most 3 are written here"


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving(served(Script(counting)), ListenOptions(port=0)) as port:
        with pytest.raises(LocalError, match=rf"^port {port} of 127.0.0.1 is taken: choose another --port"):
            await serving(served(Script(counting)), ListenOptions(port=port)).__aenter__()


async def test_pictures_are_not_for_a_model_of_text() -> None:
    async with (
        serving(served(Script(counting)), ListenOptions(port=0)) as port,
        aiohttp.ClientSession() as session,
        session.post(url(port, "images/generations"), json={"prompt": "7"}) as answer,
    ):
        assert answer.status == 400
        assert "writes text" in (await answer.json())["error"]["message"]


async def test_an_address_that_is_not_ours_is_said_once() -> None:
    with pytest.raises(LocalError, match=r"^cannot listen on --host 192.0.2.1, --port 0: [\w' ]+$"):
        listen(ListenOptions(host="192.0.2.1", port=0))

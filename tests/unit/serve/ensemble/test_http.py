"""An ensemble behind the API: the posterior in numbers, and what clients are told of experts that were lost."""

from __future__ import annotations

import json
from math import log
from typing import Any

import aiohttp
import pytest

from shoal.node.inference.http.server import ListenOptions, serving
from shoal.protocol.base.errors import LocalError, TransportError
from tests.unit.serve.ensemble.kit import Unigram, ensemble
from tests.unit.serve.ensemble.test_ensemble import failing_at
from tests.unit.serve.kit import served

pytestmark = pytest.mark.asyncio


async def ask(port: int, **more: Any) -> tuple[int, Any, Any]:
    """Status, body (of a stream its events) and headers of a completion of "aab"."""
    body = {"model": "tiny", "prompt": "aab", "max_tokens": 4, "temperature": 0, "logprobs": 2, **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer,
    ):
        if not more.get("stream"):
            return answer.status, await answer.json(), answer.headers
        events = [event.removeprefix("data: ") for event in (await answer.text()).strip().split("\n\n")]
        return answer.status, [json.loads(event) for event in events if event != "[DONE]"], answer.headers


async def experts(port: int) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/v1/models") as answer:
        found: list[dict[str, Any]] = (await answer.json())["data"][0]["shoal"]["experts"]
    return found


async def test_the_golden_posterior() -> None:
    scorer = ensemble({"a": Unigram(a=0.75, b=0.25), "b": Unigram(a=0.5, b=0.5)}, prior=(0.4, 0.6))
    async with serving(served(scorer), ListenOptions(port=0)) as port:
        _, answer, headers = await ask(port, max_tokens=2)
    choice = answer["choices"][0]
    first = 0.4 * 0.75 * 0.25 / (0.4 * 0.75 * 0.25 + 0.6 * 0.5 * 0.5)  # "aab": the first "a" tells nothing
    assert first == pytest.approx(1 / 3)
    second = 0.75 / (0.75 + 2 * 0.5)  # and after the "a" that is written
    wanted = [log(0.75 * share + 0.5 * (1 - share)) for share in (first, second)]
    assert choice["text"] == "aa"
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-6)
    assert choice["shoal"] == {
        "experts": {"a": pytest.approx(second, abs=1e-6), "b": pytest.approx(1 - second)},
        "lost": [],
    }
    assert "X-Shoal-Experts-Lost" not in headers


async def test_a_loss_is_said_in_a_header_and_of_each_choice() -> None:
    gone = failing_at(3, Unigram(a=0.9, b=0.1), TransportError("its peer is gone"))
    scorer = ensemble({"a": gone, "b": Unigram(b=0.8, c=0.2)})
    async with serving(served(scorer), ListenOptions(port=0)) as port:
        status, answer, headers = await ask(port, n=2)
        assert [each["trouble"] for each in await experts(port) if not each["answers"]] == [
            "the expert a: its peer is gone"
        ]
        _, _, healthy = await ask(port)
        assert all(each["answers"] for each in await experts(port)), "the next text has found it again"
    assert (status, headers["X-Shoal-Experts-Lost"]) == (200, "a")
    assert [choice["shoal"] for choice in answer["choices"]] == [{"experts": {"b": 1.0}, "lost": ["a"]}] * 2
    assert "X-Shoal-Experts-Lost" not in healthy


async def test_a_stream_says_it_with_its_last_part() -> None:
    gone = failing_at(3, Unigram(a=0.9, b=0.1), TransportError("its peer is gone"))
    scorer = ensemble({"a": gone, "b": Unigram(b=0.8, c=0.2)})
    async with serving(served(scorer), ListenOptions(port=0)) as port:
        _, events, _ = await ask(port, stream=True, stream_options={"include_usage": True})
    parts = [event["choices"][0] for event in events if event["choices"]]
    assert [part.get("shoal") for part in parts] == [None] * 3 + [{"experts": {"b": 1.0}, "lost": ["a"]}]
    assert parts[-1]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("error", "status"), [(TransportError("gone"), 502), (LocalError("broken"), 500)])
async def test_without_any_expert_a_request_ends_with_an_error(error: Exception, status: int) -> None:
    scorer = ensemble({"a": failing_at(3, Unigram(a=0.9), error)})
    async with serving(served(scorer), ListenOptions(port=0)) as port:
        found, answer, _ = await ask(port)
        assert (found, answer["error"]["type"]) == (status, "server_error")
        assert answer["error"]["message"].startswith("no expert is left; of the last one: the expert a: ")
        scorer.panel.members[0].expert.calls.clear()  # type: ignore[attr-defined]
        _, events, _ = await ask(port, stream=True)
        assert events[-1]["error"]["type"] == "server_error"
        assert (await ask(port))[0] == 200, "it is back"

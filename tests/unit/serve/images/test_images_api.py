"""/v1/images/generations with OpenAI's own client: pictures, seeds, many at once, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from shoal.node.diffusion.picture_source import PictureSource
from shoal.node.diffusion.server import serving
from shoal.node.inference.http.server import ListenOptions
from shoal.node.inference.served import ServeOptions
from tests.unit.serve.images.gallery_kit import Brush, write_gallery


@asynccontextmanager
async def client(folder: Path, waiting: int = 100) -> AsyncIterator[openai.AsyncOpenAI]:
    gallery = PictureSource(write_gallery(folder), ServeOptions(device="cpu", threads=1))
    async with serving(gallery, ListenOptions(port=0, waiting=waiting)) as port:
        address = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as made:
            yield made


async def painted(asking: openai.AsyncOpenAI, prompt: str, seed: int, **more: Any) -> list[bytes]:
    extra = {"seed": seed, "steps": 2}
    answer = await asking.images.generate(model="digits", prompt=prompt, extra_body=extra, **more)
    return [base64.b64decode(each.b64_json or "") for each in answer.data or []]


async def scraped(asking: openai.AsyncOpenAI) -> dict[str, float]:
    """The samples of /metrics, by name with labels; a real parser reads them."""
    async with aiohttp.ClientSession() as session, session.get(str(asking.base_url.join("/metrics"))) as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    return {each.name + labelled(each.labels): each.value for family in families for each in family.samples}


async def load(asking: openai.AsyncOpenAI, **wanted: int) -> None:
    """Wait until it is like that."""
    async with asyncio.timeout(60):
        while True:
            (model,) = [each async for each in asking.models.list()]
            if wanted.items() <= (model.model_extra or {})["shoal"].items():
                return


def labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""


def requests(route: str, status: int) -> str:
    return "shoal_serve_requests_total" + labelled({"route": route, "status": str(status)})


def run(test: Callable[[openai.AsyncOpenAI], Awaitable[None]], folder: Path, waiting: int = 100) -> None:
    async def live() -> None:
        async with client(folder, waiting) as asking:
            await test(asking)

    asyncio.run(live())


def test_pictures_of_the_size_and_number_that_were_asked_for(tmp_path: Path) -> None:
    async def test(asking: openai.AsyncOpenAI) -> None:
        pictures = await painted(asking, "7", 5, n=3, size="256x256", response_format="b64_json")
        assert len(set(pictures)) == 3
        for each in pictures:
            image = Image.open(io.BytesIO(each))
            assert (image.size, image.mode, image.format) == ((256, 256), "L", "PNG")
        assert await painted(asking, "7", 5, n=3, size="256x256") == pictures
        assert (await painted(asking, "7", 5, n=1, size="256x256"))[0] == pictures[0]
        assert await painted(asking, "7", 6, n=3, size="256x256") != pictures
        assert await painted(asking, "8", 5, n=3, size="256x256") != pictures
        answer = await asking.images.generate(prompt="7", n=1)
        assert answer.model_extra is not None
        assert answer.model_extra["shoal"]["class"] == 7

    run(test, tmp_path)


def test_the_model_is_listed_and_text_is_refused(tmp_path: Path) -> None:
    async def test(asking: openai.AsyncOpenAI) -> None:
        (model,) = [each async for each in asking.models.list()]
        assert model.id == "digits"
        assert (model.model_extra or {})["shoal"]["experts"] == ["cluster-0", "cluster-1", "cluster-2"]
        assert (await asking.models.retrieve("digits")).id == "digits"
        with pytest.raises(openai.BadRequestError, match="/v1/images/generations"):
            await asking.completions.create(model="digits", prompt="a")
        with pytest.raises(openai.BadRequestError, match="paints pictures"):
            await asking.chat.completions.create(model="digits", messages=[{"role": "user", "content": "a"}])

    run(test, tmp_path)


def test_what_cannot_be_painted_is_said_in_openais_shape(tmp_path: Path) -> None:
    async def test(asking: openai.AsyncOpenAI) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"prompt": "a cat"}, "names none"),
            ({"prompt": "7", "n": 11}, "'n'"),
            ({"prompt": "7", "size": "250x256"}, "multiple of 4"),
            ({"prompt": "7", "size": "4096x4096"}, "at most 1024"),
            ({"prompt": "7", "response_format": "url"}, "b64_json"),
            ({"prompt": "7", "extra_body": {"steps": 1000}}, "'steps'"),
            ({"prompt": "7", "extra_body": {"colour": 1}}, "colour"),
        ]
        for body, why in wrong:
            with pytest.raises(openai.BadRequestError, match=why):
                await asking.images.generate(model="digits", **body)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await asking.images.generate(model="other", prompt="7")

    run(test, tmp_path)


def test_requests_that_come_together_share_a_call_and_change_no_picture(tmp_path: Path) -> None:
    async def calls(asking: openai.AsyncOpenAI) -> float:
        return (await scraped(asking))["shoal_serve_calls_total"]

    async def test(asking: openai.AsyncOpenAI) -> None:
        alone = [await painted(asking, str(each), each, n=2) for each in range(10)]
        assert await calls(asking) == 10
        together = await asyncio.gather(*(painted(asking, str(each), each, n=2) for each in range(10)))
        assert together == alone
        assert await calls(asking) < 20

    run(test, tmp_path)


def test_too_many_who_wait_are_told_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(asking: openai.AsyncOpenAI) -> None:
        first = asyncio.create_task(painted(asking, "7", 0, n=2))
        await brush.at(1)
        second = asyncio.create_task(painted(asking, "7", 0, n=2))
        await load(asking, busy=2, waiting=2)
        with pytest.raises(openai.RateLimitError, match="try again in") as told:
            await painted(asking, "7", 0, n=1)
        assert int(told.value.response.headers["Retry-After"]) >= 1
        with pytest.raises(openai.BadRequestError, match="'n': at most 2 pictures may wait here"):
            await painted(asking, "7", 0, n=3)
        brush.allow(4)
        assert await first == await second

    run(test, tmp_path, waiting=2)


def test_metrics_say_what_was_asked_and_what_was_painted(tmp_path: Path) -> None:
    async def test(asking: openai.AsyncOpenAI) -> None:
        first = await scraped(asking)
        assert {key: value for key, value in first.items() if value} == {"shoal_serve_slots": 64}
        await painted(asking, "7", 5, n=3)
        with pytest.raises(openai.BadRequestError):
            await asking.images.generate(prompt="a cat")
        with pytest.raises(openai.NotFoundError):
            await asking.embeddings.create(model="digits", input="a")
        with pytest.raises(openai.NotFoundError):
            await asking.models.retrieve("other")
        found = await scraped(asking)
        asked = {key: value for key, value in found.items() if key.startswith("shoal_serve_requests_total")}
        assert asked == {
            requests("/metrics", 200): 1,
            requests("/v1/images/generations", 200): 1,
            requests("/v1/images/generations", 400): 1,
            requests("/v1/models/{model}", 404): 1,
            requests("none", 404): 1,
        }
        route = '{route="/v1/images/generations"}'
        assert found["shoal_serve_request_seconds_count" + route] == 2
        assert found["shoal_serve_request_seconds_sum" + route] >= found["shoal_serve_painting_seconds_total"] > 0
        assert found['shoal_serve_pictures_total{end="finished"}'] == 3
        assert found['shoal_serve_pictures_total{end="broken"}'] == 0
        assert (found["shoal_serve_picture_steps_total"], found["shoal_serve_calls_total"]) == (6, 1)
        assert (found["shoal_serve_waiting"], found["shoal_serve_slots_busy"]) == (0, 0)

    run(test, tmp_path)


def test_who_hangs_up_is_counted_and_not_painted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(asking: openai.AsyncOpenAI) -> None:
        first = asyncio.create_task(painted(asking, "1", 0, n=1))
        await brush.at(1)
        gone = asyncio.create_task(painted(asking, "2", 0, n=7))
        await load(asking, busy=1, waiting=7)
        gone.cancel()
        await load(asking, busy=1, waiting=0)
        brush.allow(4)
        assert len(await first) == 1
        assert len(await painted(asking, "3", 0, n=2)) == 2
        given_up = asyncio.create_task(painted(asking, "4", 0, n=5))
        await brush.at(5)
        given_up.cancel()
        await load(asking, busy=0, waiting=0)
        brush.allow(7)
        assert len(await painted(asking, "5", 0, n=1)) == 1
        assert brush.sizes == [1, 1, 2, 2, 5, 1, 1]
        found = await scraped(asking)
        assert found['shoal_serve_pictures_total{end="broken"}'] == 5
        assert found[requests("/v1/images/generations", 499)] == 2

    run(test, tmp_path)

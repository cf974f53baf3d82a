"""The page's events: all there is at first, then what is new, for a bounded number of readers that keep up."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from shoal.node.api.answers import Answer
from shoal.node.daemon.web import events, server
from shoal.node.daemon.web.recorder import LAST_ROUNDS, MOST_PEERS, Recorder
from shoal.node.daemon.web.server import serve_api
from shoal.node.run.view import broken_row
from tests.fake_service import EXPERTS, RUN, FakeService

HEADERS = {"Authorization": "Bearer token"}
PATIENCE = 20.0


@asynccontextmanager
async def serving(service: FakeService) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with serve_api(service, "token", "127.0.0.1", 0) as (host, port), aiohttp.ClientSession() as http:
        yield http, f"http://{host}:{port}/v1/events"


async def read(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    """The next events: name and data."""
    found: list[tuple[str, Any]] = []
    name = ""
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            field, _, text = (await response.content.readline()).decode().rstrip("\n").partition(": ")
            if field == "event":
                name = text
            elif field == "data":
                found.append((name, json.loads(text)))
    return found


@pytest.mark.asyncio
async def test_a_run_that_cannot_be_entered_again_is_a_row_without_rounds() -> None:
    service = FakeService()
    service.not_open = [broken_row("12" * 32, "its record is damaged")]
    async with serving(service) as (http, url), http.get(url, headers=HEADERS) as response:
        assert response.status == 200
        [(_, seen)] = await read(response, 1)
    assert seen["status"]["runs"][1]["failure"] == "its record is damaged"
    assert seen["status"]["headline"].endswith("training stdlib, 12121212 has failed on this node.")
    assert seen["rounds"]["12" * 32] == []


@pytest.mark.asyncio
async def test_a_page_gets_the_past_and_then_the_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY", 0.01)
    async with serving(FakeService()) as (http, url):
        async with http.get(url, headers=HEADERS) as response:
            assert response.content_type == "text/event-stream"
            first, *rest = await read(response, 4)
        assert first[0] == "snapshot"
        assert first[1]["curves"][RUN]["anew"]
        assert first[1]["status"]["headline"] == "Connected with 1 peer: training stdlib."
        assert first[1]["rounds"][RUN][0]["waited_for"] == {"evil<b>peer": 3.5}
        assert all(len(each[1]["curves"][RUN]["points"]) == 1 for each in rest)
        async with http.get(url, headers=HEADERS) as response:
            ((_, again),) = await read(response, 1)
        assert len(again["curves"][RUN]["points"]) >= 4  # a reload shows the past


@pytest.mark.asyncio
async def test_when_nothing_changes_there_is_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY", 0.01)
    monkeypatch.setattr(events, "BEAT", 0.05)
    service = FakeService()
    service.news = {"loss": None, "tokens_per_second": None, "validation_loss": None}
    monkeypatch.setattr(service, "peers", list)
    monkeypatch.setattr(service, "rounds", lambda run, last=None: [])
    async with serving(service) as (http, url), http.get(url, headers=HEADERS) as response:
        names = [name for name, _ in await read(response, 4)]
    assert names[-2:] == ["beat", "beat"]


@pytest.mark.asyncio
async def test_streams_are_bounded_and_one_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY", 0.01)
    monkeypatch.setattr(events, "MAX_STREAMS", 2)
    async with serving(FakeService()) as (http, url):
        async with http.get(url, headers=HEADERS) as one, http.get(url, headers=HEADERS) as two:
            await read(one, 1)
            await read(two, 1)
            async with http.get(url, headers=HEADERS) as three:
                assert three.status == 503
        async with asyncio.timeout(PATIENCE):
            while True:
                async with http.get(url, headers=HEADERS) as response:
                    if response.status == 200:
                        break


@pytest.mark.asyncio
async def test_a_reader_that_does_not_keep_up_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY", 0.001)
    service = FakeService()
    monkeypatch.setattr(service, "peers", lambda: [{"peer": "x" * 100_000, "run": RUN, "loss": 1.0}] * 20)
    async with serving(service) as (http, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]), limit=1024)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(events, "MAX_STREAMS", 1)
        async with asyncio.timeout(PATIENCE):
            while True:  # we read nothing more; another reader gets its place
                async with http.get(url, headers=HEADERS) as response:
                    if response.status == 200:
                        break
        writer.close()


@pytest.mark.asyncio
async def test_a_node_that_ends_does_not_wait_for_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAST_ANSWERS", 10 * PATIENCE)
    async with (
        asyncio.timeout(PATIENCE),
        aiohttp.ClientSession() as http,
        serve_api(FakeService(), "token", "127.0.0.1", 0) as (host, port),
    ):
        await read(await http.get(f"http://{host}:{port}/v1/events", headers=HEADERS), 1)


@pytest.mark.asyncio
async def test_a_mistake_of_the_node_is_logged_once_and_the_page_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "EVERY", 0.001)
    service = FakeService()
    async with serving(service) as (http, url), http.get(url, headers=HEADERS) as response:
        await read(response, 1)
        good, calls = service.peers, 0

        def bad() -> list[Answer]:
            nonlocal calls
            calls += 1
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(service, "peers", bad)
        async with asyncio.timeout(PATIENCE):
            while calls < 5:
                await asyncio.sleep(0.001)
        monkeypatch.setattr(service, "peers", good)
        await read(response, 20)
    assert caplog.text.count("the page cannot be kept up to date") == 1


def test_what_peers_claim_is_bounded_and_always_json() -> None:
    service = FakeService()
    rows = [{"peer": str(n), "run": RUN, "loss": math.nan, "path": None, "rtt_ms": math.inf} for n in range(1000)]
    service.peers = lambda: rows  # type: ignore[method-assign]
    seen = Recorder(service).look(1.8e9)
    json.dumps(seen, allow_nan=False)
    assert len(seen["peers"]) == MOST_PEERS
    assert (seen["peer_count"], seen["more_peers"]) == (1000, 1000 - MOST_PEERS)
    assert seen["peers"][0]["rtt_ms"] is None


def test_a_point_has_our_values_and_those_of_the_swarm() -> None:
    service = FakeService()
    rows = [{"peer": str(n), "run": RUN, "loss": 2.0 + n, "path": None, "rtt_ms": None} for n in range(2)]
    service.peers = lambda: [*rows, {"peer": "z", "run": None}]  # type: ignore[method-assign]
    rounds = [{"applied_at": 100.0, "round_samples": 5}, {"applied_at": 110.0, "round_samples": 500}]
    service.rounds = lambda run, last=None: rounds[-(last or LAST_ROUNDS) :]  # type: ignore[method-assign]
    recorder = Recorder(service)
    service.news = {"loss": 1.0, "tokens_per_second": 70.0}
    ((point,), _) = (recorder.look(111.0)["curves"][RUN]["points"], None)
    assert point == [111.0, 1.0, 2.0, 70.0, 50.0, 1.5]
    service.news = {"loss": None, "tokens_per_second": None, "validation_loss": None}  # who does not train sees others
    (later,) = recorder.look(160.0)["curves"][RUN]["points"]
    assert later == [160.0, None, 2.5, None, 10.0, None]  # the next round is long in coming


def test_a_run_that_was_left_leaves_no_curve() -> None:
    service = FakeService()
    recorder = Recorder(service)
    recorder.look(1.0)
    assert list(recorder.past()) == [RUN]
    gone = {**service.status(), "runs": []}
    service.status = lambda: gone  # type: ignore[method-assign]
    recorder.look(2.0)
    assert recorder.past() == {}


def test_a_family_is_shown_with_its_parts() -> None:
    service = FakeService()
    recorder = Recorder(service)
    assert recorder.look(1.0)["families"] == {}
    service.news = {"experts": {"parts": 2, "finished": 1, "trains": "text"}}
    assert recorder.look(2.0)["families"] == {RUN: EXPERTS}

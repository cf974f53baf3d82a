"""Clients that connect to an HTTP port and ask nothing take no place from those that do."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from shoal.node.api import listener as listening
from shoal.node.daemon.web.server import serve_api
from tests.fake_service import FakeService

DEADLINE = 30.0  # seconds


async def asked(http: aiohttp.ClientSession, host: str, port: int) -> int:
    async with http.get(f"http://{host}:{port}/v1/status") as response:
        await response.read()
        return response.status


@pytest.mark.asyncio
async def test_silent_connections_make_room_for_each_other_and_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_WAITING", 3)
    async with serve_api(FakeService(), "token", "127.0.0.1", 0) as (host, port), aiohttp.ClientSession() as http:
        assert await asked(http, host, port) == 401  # and its connection stays
        silent = [await asyncio.open_connection(host, port) for _ in range(5)]
        async with asyncio.timeout(DEADLINE):
            assert [await reader.read() for reader, _ in silent[:2]] == [b"", b""]
        assert await asked(http, host, port) == 401
        async with aiohttp.ClientSession() as other:
            assert await asked(other, host, port) == 401
        assert not any(reader.at_eof() for reader, _ in silent[3:])
        for _, writer in silent:
            writer.close()


@pytest.mark.asyncio
async def test_a_host_has_so_many_places_and_gets_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_FROM_HOST", 2)
    async with serve_api(FakeService(), "token", "127.0.0.1", 0) as (host, port):
        for _ in range(3):
            async with aiohttp.ClientSession() as first, aiohttp.ClientSession() as second:
                assert await asked(first, host, port) == await asked(second, host, port) == 401
                reader, writer = await asyncio.open_connection(host, port)
                async with asyncio.timeout(DEADLINE):
                    assert await reader.read() == b""
                writer.close()

"""The shell of UPnP against a router on the loopback that answers as it is told: what it sends is bounded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from shoal.node.gateway.igd import KINDS, Control
from shoal.node.gateway.markup import MAX_BYTES
from shoal.node.gateway.upnp_gateway import UpnpGateway
from shoal.node.gateway.values import Declined, GatewayError, Lease, Seen
from tests.unit.gateway.test_igd import fault, soap

HERE = "127.0.0.1"
LEASE = Lease(4101, 4101, 3600)
Answer = Callable[[str, str], tuple[int, bytes]]  # of an action and the whole request


@asynccontextmanager
async def router(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[UpnpGateway]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HERE, 0)
        await site.start()
        port = runner.addresses[0][1]
        yield UpnpGateway(Control(f"http://{HERE}:{port}/ctl", KINDS[1]), HERE)
    finally:
        await runner.cleanup()


def says(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def respond(request: web.Request) -> web.StreamResponse:
        action = request.headers["SOAPAction"].strip('"').rpartition("#")[2]
        status, body = answer(action, await request.text())
        return web.Response(status=status, body=body, content_type="text/xml")

    return respond


def done(action: str, inner: str = "") -> tuple[int, bytes]:
    return 200, soap(f'<u:{action}Response xmlns:u="{KINDS[1]}">{inner}</u:{action}Response>')


def test_it_looks_at_the_outside_and_at_what_the_router_holds() -> None:
    def answer(action: str, words: str) -> tuple[int, bytes]:
        if action == "GetExternalIPAddress":
            return done(action, "<NewExternalIPAddress>7.7.7.8</NewExternalIPAddress>")
        if ">4103<" in words:
            return 500, fault(714)
        owner = HERE if ">4101<" in words else "192.168.1.99"
        port = "4101" if ">4101<" in words else "4102"
        inner = f"<NewInternalClient>{owner}</NewInternalClient><NewInternalPort>{port}</NewInternalPort>"
        return done(action, inner)

    async def main() -> None:
        async with router(says(answer)) as gateway:
            leases = [Lease(port, port, 3600) for port in (4101, 4102, 4103)]
            assert await gateway.look(leases) == Seen("7.7.7.8", lost=(4102, 4103))

    asyncio.run(main())


def test_a_router_without_an_address_outside_is_none_that_is_silent() -> None:
    async def main() -> None:
        async with router(says(lambda action, words: (500, fault(501)))) as gateway:
            assert await gateway.look(()) == Seen("")

    asyncio.run(main())


def test_where_only_mappings_without_an_end_are_known_one_is_made() -> None:
    asked: list[str] = []

    def answer(action: str, words: str) -> tuple[int, bytes]:
        asked.append(words)
        return done(action) if "<NewLeaseDuration>0<" in words else (500, fault(725))

    async def main() -> None:
        async with router(says(answer)) as gateway:
            assert await gateway.map(4101, 4101, 3600) == Lease(4101, 4101, math.inf)

    asyncio.run(main())
    assert len(asked) == 2


def test_a_taken_port_is_told_apart() -> None:
    async def main() -> None:
        async with router(says(lambda action, words: (500, fault(718)))) as gateway:
            with pytest.raises(Declined) as refusal:
                await gateway.map(4101, 4101, 3600)
            assert refusal.value.is_taken

    asyncio.run(main())


def test_no_redirect_is_followed() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async def main() -> None:
        async with router(answer) as gateway:
            with pytest.raises(GatewayError, match="HTTP 307"):
                await gateway.unmap(LEASE)

    asyncio.run(main())
    assert asked == ["/ctl"]


def test_an_answer_without_an_end_is_read_no_further_than_allowed() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"<a>" * 20_000)
            sent += 60_000

    async def main() -> None:
        async with router(answer) as gateway:
            with pytest.raises(GatewayError, match="too long"):
                await gateway.unmap(LEASE)

    asyncio.run(main())
    assert sent < 200 * MAX_BYTES


def test_nobody_there_is_an_error_that_is_expected() -> None:
    async def main() -> None:
        async with router(says(lambda action, words: done(action))) as gateway:
            pass
        with pytest.raises(GatewayError, match="does not answer"):
            await gateway.look(())

    asyncio.run(main())

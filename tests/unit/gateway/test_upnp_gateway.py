"""The shell of UPnP against a router on the loopback that answers as it is told: what it sends is bounded."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Network

import pytest
from aiohttp import web

from shoal.node.gateway.igd import KINDS, Control
from shoal.node.gateway.markup import MAX_BYTES
from shoal.node.gateway.natpmp_gateway import NatPmpGateway
from shoal.node.gateway.routes import Home
from shoal.node.gateway.ssdp import KINDS as DEVICES
from shoal.node.gateway.upnp_gateway import UpnpGateway, find_upnp, note
from shoal.node.gateway.values import Declined, Gateway, GatewayError, Lease, Seen
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


def heard(gateway: str | None, *answers: tuple[str, str]) -> list[str]:
    """What is taken of answers, each from a host with a path."""
    found: dict[str, str] = {}
    for source, path in answers:
        said = f"HTTP/1.1 200 OK\r\nST: {DEVICES[0]}\r\nLocation: http://{source}/{path}\r\n\r\n"
        note(found, said.encode(), source, Home("192.168.1.2", IPv4Network("192.168.1.0/24"), gateway))
    return list(found.values())


def test_only_who_leads_out_of_the_network_is_heard() -> None:
    loud = [("192.168.1.9", str(number)) for number in range(9)]
    router = [("192.168.1.1", "one"), ("192.168.1.1", "two")]
    assert heard("192.168.1.1", *loud, *router) == ["http://192.168.1.1/one", "http://192.168.1.1/two"]


def test_where_nobody_knows_who_that_is_each_device_is_heard_once() -> None:
    loud = [("192.168.1.9", str(number)) for number in range(9)]
    assert heard(None, *loud, ("192.168.1.1", "one")) == ["http://192.168.1.9/0", "http://192.168.1.1/one"]


@pytest.mark.parametrize("gateway", [NatPmpGateway(HERE), UpnpGateway(Control(f"http://{HERE}:9/ctl", KINDS[1]), HERE)])
def test_a_machine_out_of_handles_cannot_ask(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    def none_left(*kind: object, **more: object) -> None:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        monkeypatch.setattr(socket, "socket", none_left)
        with pytest.raises(GatewayError, match="Too many open files"):
            await gateway.look(())

    asyncio.run(main())


def test_nor_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*kind: object, **more: object) -> None:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        monkeypatch.setattr(socket, "socket", none_left)
        with pytest.raises(GatewayError, match="Too many open files"):
            await find_upnp(Home("192.168.1.2", IPv4Network("192.168.1.0/24"), None))

    asyncio.run(main())

"""UPnP: which answers to a search are believed, what a router says in XML, and the gateway against one on the loopback.

All that strangers send is bounded, and leads nobody but to themselves.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Network
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.peers.gateway.natpmp import NatPmpGateway
from shoal.node.peers.gateway.router import Declined, Gateway, GatewayError, HomeNetwork, PortLease, RouterStatus
from shoal.node.peers.gateway.upnp import (
    DEVICES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_SERVICES,
    SERVICES,
    Service,
    UpnpError,
    UpnpGateway,
    description_url,
    external_address,
    find_upnp,
    first_text,
    leads_to,
    mapping_arguments,
    mapping_key,
    note_response,
    parse_response,
    parse_xml,
    search_requests,
    services_in,
    soap_request,
    url_within,
)

NETWORK = IPv4Network("192.168.1.0/24")
ROUTER, URL = "192.168.1.1", "http://192.168.1.1:5000/rootDesc.xml"
IP, PPP = SERVICES[1], SERVICES[2]
HERE = "127.0.0.1"
LEASE = PortLease(4101, 4101, 3600)
LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
Answer = Callable[[str, str], tuple[int, bytes]]  # of an action and the whole request

# -- the search ---------------------------------------------------------------------------------------------


def response(url: str = URL, kind: str = DEVICES[0], status: str = "HTTP/1.1 200 OK") -> bytes:
    return f"{status}\r\nCACHE-CONTROL: max-age=120\r\nst: {kind}\r\nLocation: {url}\r\n\r\n".encode()


def test_a_question_names_what_is_looked_for() -> None:
    for question, kind in zip(search_requests(), DEVICES, strict=True):
        assert question.startswith(b"M-SEARCH * HTTP/1.1\r\n")
        assert question.endswith(f"ST: {kind}\r\n\r\n".encode())


@pytest.mark.parametrize("kind", DEVICES)
def test_a_gateway_says_where_it_describes_itself(kind: str) -> None:
    assert description_url(response(kind=kind), ROUTER, NETWORK) == URL


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (response("http://192.168.1.10/x"), ROUTER),
        (response(), "10.0.0.1"),  # not of our network
        (response("http://192.168.1.7/x"), ROUTER),  # another device
        (response("http://127.0.0.1:4180/api/stop"), ROUTER),  # ourselves
        (response("http://169.254.169.254/latest/meta-data"), ROUTER),
        (response("http://example.org/x"), ROUTER),  # a name
        (response("https://192.168.1.1/x"), ROUTER),
        (response("file:///etc/passwd"), ROUTER),
        (response("http://192.168.1.1@example.org/x"), ROUTER),
        (response("http://user:word@192.168.1.1/x"), ROUTER),
        (response("http://192.168.1.1:99999/x"), ROUTER),
        (response("http://[192.168.1.1/x"), ROUTER),
        (response("http://192.168.1.1/" + "x" * 600), ROUTER),
        (response(kind="upnp:rootdevice"), ROUTER),
        (response(status="NOTIFY * HTTP/1.1"), ROUTER),
        (response() + b"x" * 2048, ROUTER),
    ],
)
def test_all_else_is_not_heard(words: bytes, source: str) -> None:
    assert description_url(words, source, NETWORK) is None


@given(words=st.binary(max_size=300) | st.text(max_size=100).map(lambda url: response(url)))
def test_whatever_is_said_leads_to_nobody_else(words: bytes) -> None:
    url = description_url(words, ROUTER, NETWORK)
    assert url is None or (urlsplit(url).scheme, urlsplit(url).hostname) == ("http", ROUTER)


def test_paths_stay_on_the_device() -> None:
    assert url_within(URL, "/ctl/IPConn") == "http://192.168.1.1:5000/ctl/IPConn"
    assert url_within(URL, "ctl?a=b") == "http://192.168.1.1:5000/ctl?a=b"
    assert (
        url_within(URL, "http://192.168.1.1:49000/ctl") == "http://192.168.1.1:49000/ctl"
    )  # another port is its own affair


@pytest.mark.parametrize("path", ["http://192.168.1.2/", "//evil.example/x", "https://192.168.1.1/", "http://[x"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(GatewayError):
        url_within(URL, path)


# -- what a router describes and answers --------------------------------------------------------------------


def service(kind: str, path: str) -> str:
    return f"<service><serviceType>{kind}</serviceType><controlURL> {path} </controlURL></service>"


def description(*services: str) -> bytes:
    inner = f"<device><serviceList>{''.join(services)}</serviceList></device>"
    outer = f"<device><friendlyName>a &amp; b</friendlyName><deviceList>{inner}</deviceList></device>"
    return f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{outer}</root>'.encode()


def soap(inner: str) -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>' + inner + "</s:Body></s:Envelope>"
    ).encode()


def fault(code: object) -> bytes:
    return soap(f"<s:Fault><detail><UPnPError><errorCode>{code}</errorCode></UPnPError></detail></s:Fault>")


def test_services_that_map_ports_are_found_the_best_first() -> None:
    found = services_in(description(service("urn:x", "/x"), service(PPP, "/ppp"), service(IP, "/ip")), URL)
    assert found == [Service("http://192.168.1.1:5000/ip", IP), Service("http://192.168.1.1:5000/ppp", PPP)]


def test_a_device_of_many_services_is_heard_for_a_few() -> None:
    assert len(services_in(description(*[service(IP, f"/{number}") for number in range(50)]), URL)) == MAX_SERVICES


def test_a_service_elsewhere_is_refused() -> None:
    with pytest.raises(GatewayError):
        services_in(description(service(IP, "http://192.168.1.9/ctl")), URL)


def test_a_call_holds_its_arguments_in_order_and_nothing_that_ends_them() -> None:
    headers, body = soap_request(
        Service(URL, IP), "AddPortMapping", **mapping_arguments(4101, 4103, "192.168.1.2<", 60)
    )
    assert headers["SOAPAction"] == f'"{IP}#AddPortMapping"'
    sent = next(parse_xml(body).iter("AddPortMapping"))
    assert [each.tag for each in sent][:5] == [
        *("NewRemoteHost", "NewExternalPort", "NewProtocol", "NewInternalPort", "NewInternalClient")
    ]
    assert (first_text(sent, "NewExternalPort"), first_text(sent, "NewInternalPort")) == ("4103", "4101")
    assert first_text(sent, "NewInternalClient") == "192.168.1.2<"
    assert [
        each.tag for each in next(parse_xml(soap_request(Service(URL, IP), "X", **mapping_key(1))[1]).iter("X"))
    ] == [*("NewRemoteHost", "NewExternalPort", "NewProtocol")]


def test_answers_are_their_values() -> None:
    said = soap('<u:GetXResponse xmlns:u="urn:y"><NewA> 1 </NewA><NewB/></u:GetXResponse>')
    assert parse_response(said, "GetX") == {"NewA": "1", "NewB": ""}
    with pytest.raises(GatewayError, match="something else"):
        parse_response(said, "GetY")


@pytest.mark.parametrize(("code", "read_as", "is_taken"), [(718, 718, True), (606, 606, False), ("nonsense", 0, False)])
def test_a_refusal_says_what_may_help(code: object, read_as: int, is_taken: bool) -> None:
    with pytest.raises(UpnpError) as refusal:
        parse_response(fault(code), "AddPortMapping")
    assert (refusal.value.upnp_code, refusal.value.is_taken) == (read_as, is_taken)


def test_whose_mapping_it_is() -> None:
    held = {"NewInternalClient": "192.168.1.2", "NewInternalPort": "4101"}
    assert leads_to(held, 4101, "192.168.1.2")
    assert not leads_to(held, 4101, "192.168.1.3")
    assert not leads_to(held, 4102, "192.168.1.2")
    assert not leads_to({}, 4101, "192.168.1.2")


@pytest.mark.parametrize(("said", "host"), [("7.7.7.8", "7.7.7.8"), ("0.0.0.0", ""), ("", ""), ("::1", ""), ("x", "")])
def test_the_outside_is_an_address_or_none(said: str, host: str) -> None:
    assert external_address({"NewExternalIPAddress": said}) == host
    assert external_address({}) == ""


# -- XML of strangers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        LAUGHS.encode(),
        LAUGHS.encode("utf-16"),
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "http://127.0.0.1/">]><a>&b;</a>',
        b"<a>&b;</a>",
        b"",
        b"<a>",
        b"<a/><a/>",
        b'<?xml version="1.0" encoding="none-such"?><a/>',
        b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1),
        b"<a>" + b"<b/>" * MAX_ELEMENTS + b"</a>",
        b"<a>" + b" " * MAX_BYTES + b"</a>",
    ],
)
def test_xml_that_breaks_a_rule_is_refused(document: bytes) -> None:
    with pytest.raises(GatewayError):
        parse_xml(document)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: soap(text)))
def test_any_answer_is_values_or_an_error_that_is_expected(document: bytes) -> None:
    with suppress(GatewayError):
        assert isinstance(parse_response(document, "GetX"), dict)


# -- the gateway --------------------------------------------------------------------------------------------


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
        yield UpnpGateway(Service(f"http://{HERE}:{port}/ctl", SERVICES[1]), HERE)
    finally:
        await runner.cleanup()


def says(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def respond(request: web.Request) -> web.StreamResponse:
        action = request.headers["SOAPAction"].strip('"').rpartition("#")[2]
        status, body = answer(action, await request.text())
        return web.Response(status=status, body=body, content_type="text/xml")

    return respond


def done(action: str, inner: str = "") -> tuple[int, bytes]:
    return 200, soap(f'<u:{action}Response xmlns:u="{SERVICES[1]}">{inner}</u:{action}Response>')


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
            leases = [PortLease(port, port, 3600) for port in (4101, 4102, 4103)]
            assert await gateway.look(leases) == RouterStatus("7.7.7.8", lost=(4102, 4103))

    asyncio.run(main())


def test_a_router_without_an_address_outside_is_none_that_is_silent() -> None:
    async def main() -> None:
        async with router(says(lambda action, words: (500, fault(501)))) as gateway:
            assert await gateway.look(()) == RouterStatus("")

    asyncio.run(main())


def test_where_only_mappings_without_an_end_are_known_one_is_made() -> None:
    asked: list[str] = []

    def answer(action: str, words: str) -> tuple[int, bytes]:
        asked.append(words)
        return done(action) if "<NewLeaseDuration>0<" in words else (500, fault(725))

    async def main() -> None:
        async with router(says(answer)) as gateway:
            assert await gateway.map(4101, 4101, 3600) == PortLease(4101, 4101, math.inf)

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
    """What is accepted of answers, each from a host with a path."""
    found: dict[str, str] = {}
    for source, path in answers:
        said = f"HTTP/1.1 200 OK\r\nST: {DEVICES[0]}\r\nLocation: http://{source}/{path}\r\n\r\n"
        note_response(found, said.encode(), source, HomeNetwork("192.168.1.2", NETWORK, gateway))
    return list(found.values())


def test_only_who_leads_out_of_the_network_is_heard() -> None:
    loud = [("192.168.1.9", str(number)) for number in range(9)]
    router = [("192.168.1.1", "one"), ("192.168.1.1", "two")]
    assert heard("192.168.1.1", *loud, *router) == ["http://192.168.1.1/one", "http://192.168.1.1/two"]


def test_where_nobody_knows_who_that_is_each_device_is_heard_once() -> None:
    loud = [("192.168.1.9", str(number)) for number in range(9)]
    assert heard(None, *loud, ("192.168.1.1", "one")) == ["http://192.168.1.9/0", "http://192.168.1.1/one"]


@pytest.mark.parametrize(
    "gateway", [NatPmpGateway(HERE), UpnpGateway(Service(f"http://{HERE}:9/ctl", SERVICES[1]), HERE)]
)
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
            await find_upnp(HomeNetwork("192.168.1.2", NETWORK, None))

    asyncio.run(main())

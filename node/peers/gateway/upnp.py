"""A router that speaks UPnP's Internet Gateway Device protocol: it is found by SSDP, describes itself in XML, and maps
ports by SOAP calls. First the gateway, then the three formats, which are pure.

Rules:
- The search is sent from our address on the home network only, and only devices of that network are heard.
- If the default gateway is known, only its responses count. That is no proof: anybody on the network can forge its
  address, and so have the router itself asked, at a port and path of their choice.
- A device may name any URL. Only plain HTTP at the very address that the response came from is used, so that no device
  sends us to another, to ourselves, or to the internet.
- Every request is bounded in time and bytes, goes to a numerical address, follows no redirect, uses no proxy, and
  decompresses nothing.
- XML with a document type is refused, so the only entities are XML's own five; its size, depth and number of elements
  are bounded; namespaces and attributes are dropped.

No library does this: see "NAT-PMP and UPnP are spoken by code of our own" in docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, ip_address
from urllib.parse import SplitResult, urljoin, urlsplit
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser
from xml.sax.saxutils import escape

import aiohttp

from shoal.node.peers.gateway.router import Declined, GatewayError, HomeNetwork, PortLease, RouterStatus
from shoal.protocol.net.system.version import agent

SEARCH = 2.5  # seconds for responses to a search
AFTER_FIRST = 0.5  # seconds for other devices' responses after the first
MAX_DEVICES, MAX_SERVICES = 4, 4  # in the network, and services of each
LIMIT = aiohttp.ClientTimeout(total=4.0)  # seconds for a request
STATUSES = (200, 500)  # UPnP's errors come with status 500
NAME = "Shoal"  # of the mapping in the router's list

GROUP, PORT = "239.255.255.250", 1900
DEVICES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",  # devices of version 2 should respond to this, too
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)
SERVICES = (  # that map ports, the best first
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
LONGEST = 2048  # bytes of a response to a search
LONGEST_URL = 512
MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS = 64 << 10, 32, 1024  # of XML

NO_SUCH_ENTRY, TAKEN, PERMANENT_ONLY = 714, 718, 725
REFUSALS = {  # by UPnP's error code
    402: "does not understand us",
    501: "says that the action failed",
    606: "does not let us",
    TAKEN: "has given that port to another machine",
    724: "wants both ports to be the same",
    728: "has no room for another mapping",
}
ENVELOPE = (
    '<?xml version="1.0"?>\r\n'
    '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
    's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
    '<u:{action} xmlns:u="{kind}">{arguments}</u:{action}></s:Body></s:Envelope>\r\n'
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service that maps ports: its control URL and its service type."""

    url: str
    kind: str


class UpnpError(Declined):
    """The router has answered a call with a UPnP error."""

    def __init__(self, code: int) -> None:
        words = REFUSALS.get(code, f"refuses, with code {code}")
        super().__init__(f"the router {words} (UPnP)", is_taken=code == TAKEN)
        self.upnp_code = code


class UpnpGateway:
    """The router with this service; `here` is our address on its network."""

    protocol = "upnp"

    def __init__(self, service: Service, here: str) -> None:
        self._service, self._here = service, here

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """See Gateway."""
        try:
            host = external_address(await self._call("GetExternalIPAddress"))
        except UpnpError:  # some routers say so that they have none
            host = ""
        return RouterStatus(host, tuple([each.port for each in leases if not await self._holds(each)]))

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """See Gateway. Some routers support only mappings without an end."""
        try:
            await self._call("AddPortMapping", **mapping_arguments(port, external, self._here, lifetime))
        except UpnpError as error:
            if error.upnp_code != PERMANENT_ONLY:
                raise
            await self._call("AddPortMapping", **mapping_arguments(port, external, self._here, 0))
            return PortLease(port, external, math.inf)
        return PortLease(port, external, lifetime)

    async def unmap(self, lease: PortLease) -> None:
        """See Gateway."""
        await self._call("DeletePortMapping", **mapping_key(lease.external))

    async def _holds(self, lease: PortLease) -> bool:
        try:
            found = await self._call("GetSpecificPortMappingEntry", **mapping_key(lease.external))
        except UpnpError as error:
            return error.upnp_code != NO_SUCH_ENTRY  # other errors say nothing about the mapping
        return leads_to(found, lease.port, self._here)

    async def _call(self, action: str, **arguments: object) -> dict[str, str]:
        headers, body = soap_request(self._service, action, **arguments)
        return parse_response(await _request("POST", self._service.url, body, headers), action)


async def find_upnp(home: HomeNetwork) -> UpnpGateway:
    """The first gateway on our network that has an external address, or else the first; GatewayError without any."""
    found = [UpnpGateway(each, home.here) for url in await _search(home) for each in await _services(url)]
    for gateway in found:
        with suppress(GatewayError):
            if (await gateway.look(())).host:
                return gateway
    if not found:
        raise GatewayError("no router here answers to UPnP")
    return found[0]


async def _services(url: str) -> list[Service]:
    try:
        return services_in(await _request("GET", url), url)
    except GatewayError:
        return []  # a bad description of one device must not hide the others


async def _search(home: HomeNetwork) -> list[str]:
    """The URLs at which gateways on our network describe themselves."""
    found: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(home.here))
            sock.bind((home.here, 0))
            with suppress(TimeoutError):
                async with asyncio.timeout(SEARCH) as limit:
                    await _gather(sock, home, found, limit)
    except OSError as error:
        raise GatewayError(f"nobody can be asked by UPnP here: {error.strerror}") from error
    return list(found.values())


async def _gather(sock: socket.socket, home: HomeNetwork, found: dict[str, str], limit: asyncio.Timeout) -> None:
    loop = asyncio.get_running_loop()
    for request in search_requests():
        await loop.sock_sendto(sock, request, (GROUP, PORT))
    while len(found) < MAX_DEVICES:
        response, (source, _) = await loop.sock_recvfrom(sock, LONGEST + 1)
        if note_response(found, response, source, home):
            limit.reschedule(loop.time() + AFTER_FIRST)


async def _request(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    plain = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": agent(), **(headers or {})}
    try:
        async with (
            aiohttp.ClientSession(timeout=LIMIT, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, data=body or None, headers=plain, allow_redirects=False) as response,
        ):
            content = await _bounded(response.content)
            if response.status not in STATUSES:
                raise GatewayError(f"the router answers with HTTP {response.status}")
            return content
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: malformed HTTP
        raise GatewayError(f"the router does not answer: {str(error) or type(error).__name__}") from error


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    read = bytearray()
    while len(read) <= MAX_BYTES and (more := await content.read(MAX_BYTES)):
        read += more
    return bytes(read)


# -- SSDP: which devices are gateways, and where they describe themselves ---------------------------------------


def search_requests() -> list[bytes]:
    """The multicast packets of a search."""
    return [_search_request(kind) for kind in DEVICES]


def _search_request(kind: str) -> bytes:
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP}:{PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {kind}",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def note_response(found: dict[str, str], response: bytes, source: str, home: HomeNetwork) -> bool:
    """Adds a valid response to `found`; whether it is the first one.

    If the default gateway is known, only its responses count. Otherwise each device has one entry, so that none can
    crowd out the others.
    """
    url = description_url(response, source, home.network)
    if url is None or home.gateway not in (None, source):
        return False
    is_first = not found
    found.setdefault(url if home.gateway else source, url)
    return is_first


def description_url(response: bytes, source: str, network: IPv4Network) -> str | None:
    """The URL at which the device at `source` describes itself.

    None if the device is not in our network, or no gateway, or if the URL is of another host.
    """
    if len(response) > LONGEST or ip_address(source) not in network:
        return None
    status, *lines = response.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    url = fields.get("location", "")
    is_gateway = status.startswith("HTTP/1.1 200") and fields.get("st") in DEVICES
    return url if is_gateway and _is_at(url, source) else None


def url_within(url: str, path: str) -> str:
    """The URL of a path in the description at `url`; GatewayError if it is not on the same device."""
    source = _parts(url)
    host = source.hostname if source is not None else None
    with suppress(ValueError):  # bad brackets
        if host and _is_at(there := urljoin(url, path), host):
            return there
    raise GatewayError(f"the router at {host or url} names another place than itself")


def _is_at(url: str, host: str) -> bool:
    parts = _parts(url)
    return parts is not None and parts.scheme == "http" and parts.hostname == host and parts.username is None


def _parts(url: str) -> SplitResult | None:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable():
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:  # bad brackets, or a bad port
        return None


# -- XML from untrusted devices ---------------------------------------------------------------------------------


def parse_xml(document: bytes) -> Element:
    """The root element; GatewayError if the document breaks a rule."""
    if len(document) > MAX_BYTES:
        raise GatewayError("the router's XML is too long")
    parser = XMLParser(target=_BoundedTree())
    try:
        parser.feed(document)
        root: Element = parser.close()
    except (ParseError, ValueError, LookupError) as error:  # ValueError and LookupError: a bad encoding
        raise GatewayError(f"the router's XML is none: {error}") from error
    return root


class _BoundedTree(TreeBuilder):
    def __init__(self) -> None:
        super().__init__()
        self._count = self._depth = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._count += 1
        self._depth += 1
        if self._count > MAX_ELEMENTS or self._depth > MAX_DEPTH:
            raise GatewayError("the router's XML has too many elements")
        return super().start(_local(tag), {})

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(_local(tag))

    def doctype(self, *declared: object) -> None:
        raise GatewayError("the router's XML declares a document type, which may hold anything")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _text(element: Element) -> str:
    return (element.text or "").strip()


def first_text(root: Element, name: str) -> str:
    """The text of the first element of this name; empty if there is none."""
    return next((_text(each) for each in root.iter(name)), "")


# -- a device's description, and the calls that map a port ------------------------------------------------------


def services_in(description: bytes, url: str) -> list[Service]:
    """The services that map ports in a device's description, the best first; GatewayError if one is elsewhere."""
    found: list[Service] = []
    for service in parse_xml(description).iter("service"):
        kind = first_text(service, "serviceType")
        if kind in SERVICES and len(found) < MAX_SERVICES:
            found.append(Service(url_within(url, first_text(service, "controlURL")), kind))
    return sorted(found, key=lambda each: SERVICES.index(each.kind))


def soap_request(service: Service, action: str, **arguments: object) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a call."""
    xml = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in arguments.items())
    headers = {"Content-Type": 'text/xml; charset="utf-8"', "SOAPAction": f'"{service.kind}#{action}"'}
    return headers, ENVELOPE.format(action=action, kind=service.kind, arguments=xml).encode()


def parse_response(document: bytes, action: str) -> dict[str, str]:
    """The values in the response to a call; UpnpError if it is a refusal."""
    root = parse_xml(document)
    if code := first_text(root, "errorCode"):
        raise UpnpError(int(code) if code.isascii() and code.isdigit() and len(code) <= 5 else 0)
    found = next(root.iter(f"{action}Response"), None)
    if found is None:
        raise GatewayError(f"the router answers something else than {action}")
    return {each.tag: _text(each) for each in found}


def mapping_arguments(port: int, external: int, here: str, lifetime: int) -> dict[str, object]:
    """The arguments of AddPortMapping: TCP, from everywhere. Their order matters to some routers."""
    return {
        **mapping_key(external),
        "NewInternalPort": port,
        "NewInternalClient": here,
        "NewEnabled": 1,
        "NewPortMappingDescription": NAME,
        "NewLeaseDuration": lifetime,
    }


def mapping_key(external: int) -> dict[str, object]:
    """The arguments that identify a mapping."""
    return {"NewRemoteHost": "", "NewExternalPort": external, "NewProtocol": "TCP"}


def leads_to(found: dict[str, str], port: int, here: str) -> bool:
    """Whether a mapping that the router holds is ours."""
    return (found.get("NewInternalClient"), found.get("NewInternalPort")) == (here, str(port))


def external_address(found: dict[str, str]) -> str:
    """The address in a response to GetExternalIPAddress; empty if it is not an address."""
    try:
        host = IPv4Address(found.get("NewExternalIPAddress", ""))
    except AddressValueError:
        return ""
    return "" if host.is_unspecified else str(host)

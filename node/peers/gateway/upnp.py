"""A router that speaks UPnP's Internet Gateway Device: it is searched by SSDP, describes itself in XML, and maps ports
when it is called by SOAP. First the gateway, then its three formats, which are pure.

Rules:
- The search goes out at our address on the home network alone, and only devices of that network are heard.
- Where it is known who leads out of our network, nobody else is heard. That is no proof: who is on the network can send
  with the address of another, and then has the router itself asked, at a port and path of its choice.
- A device may name any URL. Only one of plain HTTP at the very address that the answer came from is used, so that no
  device sends us to another, to ourselves, or to the internet.
- Every request is bounded in time and bytes, goes to a numerical address, follows no redirect, uses no proxy, and
  unpacks nothing.
- XML has no document type, and so no entity but the five that XML has; its size, depth and number of elements are
  bounded; names lose their namespaces, and attributes are dropped.

No library does this: see "Routers are asked in NAT-PMP and UPnP by words of our own" in docs/decisions.md.
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

SEARCH = 2.5  # seconds for answers to a search
AFTER_FIRST = 0.5  # seconds for others' answers after the first
MAX_DEVICES, MAX_CONTROLS = 4, 4  # in the network, and services of each
LIMIT = aiohttp.ClientTimeout(total=4.0)  # seconds for a request
STATUSES = (200, 500)  # 500 stands over UPnP's errors
NAME = "Shoal"  # under which the mapping stands in the router's list

GROUP, PORT = "239.255.255.250", 1900
DEVICES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",  # one of version 2 answers to this, or should
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)
SERVICES = (  # that map ports, the best first
    "urn:schemas-upnp-org:service:WANIPConnection:2",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
)
LONGEST = 2048  # bytes of an answer to a search
LONGEST_URL = 512
MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS = 64 << 10, 32, 1024  # of XML

NO_SUCH_ENTRY, TAKEN, PERMANENT_ONLY = 714, 718, 725
WORDS = {
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
class Control:
    """Where a service is asked, and which one it is."""

    url: str
    kind: str


class Fault(Declined):
    """A call was answered with an error of UPnP's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the router {WORDS.get(code, f'refuses, with code {code}')} (UPnP)", is_taken=code == TAKEN)
        self.number = code  # UPnP's


class UpnpGateway:
    """The router whose service is at `control`; `here` is our address on its network."""

    protocol = "upnp"

    def __init__(self, control: Control, here: str) -> None:
        self._control, self._here = control, here

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """See Gateway."""
        try:
            host = outside(await self._call("GetExternalIPAddress"))
        except Fault:  # how some say that they have none
            host = ""
        return RouterStatus(host, tuple([each.port for each in leases if not await self._holds(each)]))

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """See Gateway. Some routers know mappings without an end only."""
        try:
            await self._call("AddPortMapping", **mapping(port, external, self._here, lifetime))
        except Fault as fault:
            if fault.number != PERMANENT_ONLY:
                raise
            await self._call("AddPortMapping", **mapping(port, external, self._here, 0))
            return PortLease(port, external, math.inf)
        return PortLease(port, external, lifetime)

    async def unmap(self, lease: PortLease) -> None:
        """See Gateway."""
        await self._call("DeletePortMapping", **entry(lease.external))

    async def _holds(self, lease: PortLease) -> bool:
        try:
            found = await self._call("GetSpecificPortMappingEntry", **entry(lease.external))
        except Fault as fault:
            return fault.number != NO_SUCH_ENTRY  # others: it does not tell
        return leads_to(found, lease.port, self._here)

    async def _call(self, action: str, **arguments: object) -> dict[str, str]:
        headers, body = call(self._control, action, **arguments)
        return answer(await _request("POST", self._control.url, body, headers), action)


async def find_upnp(home: HomeNetwork) -> UpnpGateway:
    """The first gateway on our network that has an address outside, or else the first; GatewayError without any."""
    found = [UpnpGateway(each, home.here) for url in await _search(home) for each in await _controls(url)]
    for gateway in found:
        with suppress(GatewayError):
            if (await gateway.look(())).host:
                return gateway
    if not found:
        raise GatewayError("no router here answers to UPnP")
    return found[0]


async def _controls(url: str) -> list[Control]:
    try:
        return controls(await _request("GET", url), url)
    except GatewayError:
        return []  # one device's nonsense must not hide the others


async def _search(home: HomeNetwork) -> list[str]:
    """Where gateways on our network describe themselves."""
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
    for question in questions():
        await loop.sock_sendto(sock, question, (GROUP, PORT))
    while len(found) < MAX_DEVICES:
        said, (source, _) = await loop.sock_recvfrom(sock, LONGEST + 1)
        if note(found, said, source, home):
            limit.reschedule(loop.time() + AFTER_FIRST)


async def _request(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    plain = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": agent(), **(headers or {})}
    try:
        async with (
            aiohttp.ClientSession(timeout=LIMIT, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, data=body or None, headers=plain, allow_redirects=False) as response,
        ):
            said = await _bounded(response.content)
            if response.status not in STATUSES:
                raise GatewayError(f"the router answers with HTTP {response.status}")
            return said
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: of what it calls HTTP
        raise GatewayError(f"the router does not answer: {str(error) or type(error).__name__}") from error


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    said = bytearray()
    while len(said) <= MAX_BYTES and (more := await content.read(MAX_BYTES)):
        said += more
    return bytes(said)


# -- SSDP: who is a gateway, and where it describes itself ------------------------------------------------------


def questions() -> list[bytes]:
    """What is said to all on the network."""
    return [_question(kind) for kind in DEVICES]


def _question(kind: str) -> bytes:
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP}:{PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {kind}",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def note(found: dict[str, str], said: bytes, source: str, home: HomeNetwork) -> bool:
    """Put an answer to what was `found`, if it counts; whether it is the first that does.

    Who leads out of the network is heard alone, if that is known, and else each device once: none keeps others out.
    """
    url = location(said, source, home.network)
    if url is None or home.gateway not in (None, source):
        return False
    is_first = not found
    found.setdefault(url if home.gateway else source, url)
    return is_first


def location(said: bytes, source: str, network: IPv4Network) -> str | None:
    """Where the device at `source` describes itself; None if it is not of our network, or no gateway, or elsewhere."""
    if len(said) > LONGEST or ip_address(source) not in network:
        return None
    status, *lines = said.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    url = fields.get("location", "")
    is_answer = status.startswith("HTTP/1.1 200") and fields.get("st") in DEVICES
    return url if is_answer and _is_at(url, source) else None


def within(url: str, path: str) -> str:
    """Where a path in the description at `url` leads; GatewayError if that is not the same device."""
    source = _parts(url)
    host = source.hostname if source is not None else None
    with suppress(ValueError):  # of brackets
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
    except ValueError:  # of brackets, or of a port
        return None


# -- XML that a stranger wrote ----------------------------------------------------------------------------------


def read(document: bytes) -> Element:
    """The root element; GatewayError if the document breaks a rule."""
    if len(document) > MAX_BYTES:
        raise GatewayError("the router's XML is too long")
    parser = XMLParser(target=_BoundedTree())
    try:
        parser.feed(document)
        root: Element = parser.close()
    except (ParseError, ValueError, LookupError) as error:  # ValueError and LookupError: of an encoding
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


def first(root: Element, name: str) -> str:
    """The text of the first element of this name; empty if there is none."""
    return next((_text(each) for each in root.iter(name)), "")


# -- a device's description, and the calls that map a port ------------------------------------------------------


def controls(description: bytes, url: str) -> list[Control]:
    """The services that map ports of the device that describes itself so at `url`; those elsewhere do not count."""
    found: list[Control] = []
    for service in read(description).iter("service"):
        kind = first(service, "serviceType")
        if kind in SERVICES and len(found) < MAX_CONTROLS:
            found.append(Control(within(url, first(service, "controlURL")), kind))
    return sorted(found, key=lambda each: SERVICES.index(each.kind))


def call(control: Control, action: str, **arguments: object) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a call."""
    words = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in arguments.items())
    headers = {"Content-Type": 'text/xml; charset="utf-8"', "SOAPAction": f'"{control.kind}#{action}"'}
    return headers, ENVELOPE.format(action=action, kind=control.kind, arguments=words).encode()


def answer(document: bytes, action: str) -> dict[str, str]:
    """The values in the answer to a call; Fault if it is a refusal."""
    root = read(document)
    if code := first(root, "errorCode"):
        raise Fault(int(code) if code.isascii() and code.isdigit() and len(code) <= 5 else 0)
    found = next(root.iter(f"{action}Response"), None)
    if found is None:
        raise GatewayError(f"the router answers something else than {action}")
    return {each.tag: _text(each) for each in found}


def mapping(port: int, external: int, here: str, lifetime: int) -> dict[str, object]:
    """The arguments of AddPortMapping: TCP, from everywhere. Their order matters to some routers."""
    return {
        **entry(external),
        "NewInternalPort": port,
        "NewInternalClient": here,
        "NewEnabled": 1,
        "NewPortMappingDescription": NAME,
        "NewLeaseDuration": lifetime,
    }


def entry(external: int) -> dict[str, object]:
    """The arguments that name a mapping."""
    return {"NewRemoteHost": "", "NewExternalPort": external, "NewProtocol": "TCP"}


def leads_to(found: dict[str, str], port: int, here: str) -> bool:
    """Whether a mapping that the router holds is ours."""
    return (found.get("NewInternalClient"), found.get("NewInternalPort")) == (here, str(port))


def outside(found: dict[str, str]) -> str:
    """The address in an answer to GetExternalIPAddress; empty if it is none."""
    try:
        host = IPv4Address(found.get("NewExternalIPAddress", ""))
    except AddressValueError:
        return ""
    return "" if host.is_unspecified else str(host)

"""A router that speaks UPnP: the shell of ssdp.py and igd.py.

Rules:
- Every request is bounded in time and bytes, goes to a numerical address, follows no redirect, uses no proxy, and
  unpacks nothing.
- Where it is known who leads out of our network, nobody else is heard. That is no proof: who is on the network can send
  with the address of another, and then has the router itself asked, at a port and path of its choice.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from contextlib import suppress

import aiohttp

from shoal.node.gateway import igd, markup, ssdp
from shoal.node.gateway.routes import Home
from shoal.node.gateway.values import GatewayError, Lease, Seen
from shoal.protocol.version import agent

SEARCH = 2.5  # seconds for answers to a search
AFTER_FIRST = 0.5  # seconds for others' answers after the first
MAX_DEVICES = 4
LIMIT = aiohttp.ClientTimeout(total=4.0)  # seconds for a request
STATUSES = (200, 500)  # 500 stands over UPnP's errors


class UpnpGateway:
    """The router whose service is at `control`; `here` is our address on its network."""

    protocol = "upnp"

    def __init__(self, control: igd.Control, here: str) -> None:
        self._control, self._here = control, here

    async def look(self, leases: Sequence[Lease]) -> Seen:
        """See Gateway."""
        try:
            host = igd.outside(await self._call("GetExternalIPAddress"))
        except igd.Fault:  # how some say that they have none
            host = ""
        return Seen(host, tuple([each.port for each in leases if not await self._holds(each)]))

    async def map(self, port: int, external: int, lifetime: int) -> Lease:
        """See Gateway. Some routers know mappings without an end only."""
        try:
            await self._call("AddPortMapping", **igd.mapping(port, external, self._here, lifetime))
        except igd.Fault as fault:
            if fault.number != igd.PERMANENT_ONLY:
                raise
            await self._call("AddPortMapping", **igd.mapping(port, external, self._here, 0))
            return Lease(port, external, math.inf)
        return Lease(port, external, lifetime)

    async def unmap(self, lease: Lease) -> None:
        """See Gateway."""
        await self._call("DeletePortMapping", **igd.entry(lease.external))

    async def _holds(self, lease: Lease) -> bool:
        try:
            found = await self._call("GetSpecificPortMappingEntry", **igd.entry(lease.external))
        except igd.Fault as fault:
            return fault.number != igd.NO_SUCH_ENTRY  # others: it does not tell
        return igd.leads_to(found, lease.port, self._here)

    async def _call(self, action: str, **arguments: object) -> dict[str, str]:
        headers, body = igd.call(self._control, action, **arguments)
        return igd.answer(await _request("POST", self._control.url, body, headers), action)


async def find_upnp(home: Home) -> UpnpGateway:
    """The first gateway on our network that has an address outside, or else the first; GatewayError without any."""
    found = [UpnpGateway(each, home.here) for url in await _search(home) for each in await _controls(url)]
    for gateway in found:
        with suppress(GatewayError):
            if (await gateway.look(())).host:
                return gateway
    if not found:
        raise GatewayError("no router here answers to UPnP")
    return found[0]


async def _controls(url: str) -> list[igd.Control]:
    try:
        return igd.controls(await _request("GET", url), url)
    except GatewayError:
        return []  # one device's nonsense must not hide the others


async def _search(home: Home) -> list[str]:
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


async def _gather(sock: socket.socket, home: Home, found: dict[str, str], limit: asyncio.Timeout) -> None:
    loop = asyncio.get_running_loop()
    for question in ssdp.questions():
        await loop.sock_sendto(sock, question, (ssdp.GROUP, ssdp.PORT))
    while len(found) < MAX_DEVICES:
        said, (source, _) = await loop.sock_recvfrom(sock, ssdp.LONGEST + 1)
        if note(found, said, source, home):
            limit.reschedule(loop.time() + AFTER_FIRST)


def note(found: dict[str, str], said: bytes, source: str, home: Home) -> bool:
    """Put an answer to what was `found`, if it counts; whether it is the first that does.

    Who leads out of the network is heard alone, if that is known, and else each device once: none keeps others out.
    """
    url = ssdp.location(said, source, home.network)
    if url is None or home.gateway not in (None, source):
        return False
    is_first = not found
    found.setdefault(url if home.gateway else source, url)
    return is_first


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
    while len(said) <= markup.MAX_BYTES and (more := await content.read(markup.MAX_BYTES)):
        said += more
    return bytes(said)

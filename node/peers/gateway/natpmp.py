"""A router that speaks NAT-PMP (RFC 6886): its messages, and the socket that carries them.

Rules:
- Decoding is total: a packet that is no response to the request gives None, and is ignored.
- Each response has the seconds since the router's start. If that count is lower than it should be by now, the router
  has restarted and has lost all mappings (section 3.6).
- The socket is connected, so that the kernel drops packets from anybody else.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TypeVar

from shoal.node.peers.gateway.router import Declined, GatewayError, PortLease, RouterStatus

PORT = 5351
EXTERNAL_ADDRESS, MAP_TCP = 0, 2  # opcodes of requests
RESPONSE = 128  # is added to the opcode in responses
LONGEST = 64  # bytes: the longest response has 16
REFUSALS = {  # by result code
    1: "speaks another version of NAT-PMP",
    2: "has it switched off, or does not let us",
    3: "has no address outside itself",
    4: "has no room for another mapping",
    5: "does not know how to map ports",
}
NO_ADDRESS = 3
SLACK = 2.0  # seconds that the router's clock may be behind, beside an eighth of the time that has passed
FIRST, TRIES = 0.25, 4  # seconds until the first retry, doubled for each further one: 3.75 in all


@dataclass(frozen=True, slots=True)
class Response:
    """The fields that all responses have; `code` 0 means success."""

    code: int
    epoch: int  # seconds since the router's start


T = TypeVar("T", bound=Response)


class NatPmpGateway:
    """The router at `host`."""

    protocol = "nat-pmp"

    def __init__(self, host: str) -> None:
        self._host = host
        self._epoch: tuple[float, int] | None = None  # our time when the router last told its epoch, and the epoch

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """See Gateway."""
        response = await self._ask(address_request(), parse_address)
        has_restarted = self._has_restarted(response.epoch)
        if response.code not in (0, NO_ADDRESS):
            raise _declined(response.code)
        host = response.host if response.code == 0 and response.host != "0.0.0.0" else ""
        return RouterStatus(host, tuple(each.port for each in leases) if has_restarted else ())

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """See Gateway."""
        response = await self._ask(mapping_request(port, external, lifetime), lambda data: parse_mapping(data, port))
        if response.code != 0 or not (response.external and response.lifetime):
            raise _declined(response.code)
        return PortLease(port, response.external, response.lifetime)

    async def unmap(self, lease: PortLease) -> None:
        """See Gateway."""
        await self._ask(mapping_request(lease.port, 0, 0), lambda data: parse_mapping(data, lease.port))

    def _has_restarted(self, epoch: int) -> bool:
        now, before = asyncio.get_running_loop().time(), self._epoch
        self._epoch = now, epoch
        return before is not None and has_restarted(before[1], now - before[0], epoch)

    async def _ask(self, request: bytes, parse: Callable[[bytes], T | None]) -> T:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect((self._host, PORT))
                for turn in range(TRIES):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FIRST * 2**turn):
                            return await _ask_once(sock, request, parse)
        except OSError as error:  # nobody listens there, there is no route, or no socket
            raise GatewayError(f"the router at {self._host} does not speak NAT-PMP: {error.strerror}") from error
        raise GatewayError(f"the router at {self._host} does not answer (NAT-PMP)")


async def _ask_once(sock: socket.socket, request: bytes, parse: Callable[[bytes], T | None]) -> T:
    """Sends the request and waits for the first packet that `parse` accepts."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, request)
    while True:
        if (response := parse(await loop.sock_recv(sock, LONGEST + 1))) is not None:
            return response


def _declined(code: int) -> Declined:
    return Declined(f"the router {REFUSALS.get(code, f'refuses, with code {code}')} (NAT-PMP)")


# -- on the wire; pure ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddressResponse(Response):
    """The router's external address."""

    host: str


@dataclass(frozen=True, slots=True)
class MappingResponse(Response):
    """A mapping that was made, or refused."""

    port: int
    external: int
    lifetime: int


def address_request() -> bytes:
    """The request for the router's external address."""
    return struct.pack("!BB", 0, EXTERNAL_ADDRESS)


def mapping_request(port: int, external: int, lifetime: int) -> bytes:
    """The request for a mapping of a TCP port; a lifetime of 0 removes it."""
    return struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, external, lifetime)


def parse_address(data: bytes) -> AddressResponse | None:
    """The response to `address_request`; a refusal may end after the epoch."""
    head = _head(data, EXTERNAL_ADDRESS)
    if head is None or (head.code == 0 and len(data) < 12):
        return None
    return AddressResponse(head.code, head.epoch, str(IPv4Address(data[8:12])) if len(data) >= 12 else "0.0.0.0")


def parse_mapping(data: bytes, port: int) -> MappingResponse | None:
    """The response to a `mapping_request` for this port."""
    head = _head(data, MAP_TCP)
    if head is None or (head.code == 0 and len(data) < 16):
        return None
    if len(data) < 16:
        return MappingResponse(head.code, head.epoch, port, 0, 0)
    internal, external, lifetime = struct.unpack_from("!HHI", data, 8)
    return MappingResponse(head.code, head.epoch, internal, external, lifetime) if internal == port else None


def _head(data: bytes, opcode: int) -> Response | None:
    if not 8 <= len(data) <= LONGEST:
        return None
    version, kind, code, epoch = struct.unpack_from("!BBHI", data)
    return Response(code, epoch) if (version, kind) == (0, RESPONSE + opcode) else None


def has_restarted(before: int, seconds: float, epoch: int) -> bool:
    """Whether a router with this epoch has restarted since it had the epoch `before`, so many seconds ago."""
    return epoch + SLACK < before + seconds * 7 / 8

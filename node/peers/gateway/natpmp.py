"""A router that speaks NAT-PMP (RFC 6886): its messages, and the socket that carries them.

Rules:
- Decoding is total: whatever is no answer to the question is None, and is passed over.
- A router counts the seconds since its start in each answer. Where that count is behind what it should be by now, the
  router has started again and has forgotten all mappings (section 3.6).
- The socket is connected, so that the kernel drops what comes from anybody else.
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
WHERE, MAP_TCP = 0, 2  # what is asked
ANSWER = 128  # is added to it in answers
LONGEST = 64  # bytes: the longest answer has 16
WORDS = {
    1: "speaks another version of NAT-PMP",
    2: "has it switched off, or does not let us",
    3: "has no address outside itself",
    4: "has no room for another mapping",
    5: "does not know how to map ports",
}
NO_ADDRESS = 3
SLACK = 2.0  # seconds that the router's clock may be behind, beside an eighth of what has passed
FIRST, TRIES = 0.25, 4  # seconds until it is asked again, each time twice as long: 3.75 in all


@dataclass(frozen=True, slots=True)
class Answer:
    """What all answers have; `code` 0 is consent."""

    code: int
    epoch: int  # seconds since the router's start


T = TypeVar("T", bound=Answer)


class NatPmpGateway:
    """The router at `host`."""

    protocol = "nat-pmp"

    def __init__(self, host: str) -> None:
        self._host = host
        self._epoch: tuple[float, int] | None = None  # when it was told us, by our clock

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        """See Gateway."""
        answer = await self._ask(ask_where(), where)
        is_new = self._has_started_again(answer.epoch)
        if answer.code not in (0, NO_ADDRESS):
            raise _declined(answer.code)
        host = answer.host if answer.code == 0 and answer.host != "0.0.0.0" else ""
        return RouterStatus(host, tuple(each.port for each in leases) if is_new else ())

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        """See Gateway."""
        answer = await self._ask(ask_to_map(port, external, lifetime), lambda said: mapped(said, port))
        if answer.code != 0 or not (answer.external and answer.lifetime):
            raise _declined(answer.code)
        return PortLease(port, answer.external, answer.lifetime)

    async def unmap(self, lease: PortLease) -> None:
        """See Gateway."""
        await self._ask(ask_to_map(lease.port, 0, 0), lambda said: mapped(said, lease.port))

    def _has_started_again(self, epoch: int) -> bool:
        now, before = asyncio.get_running_loop().time(), self._epoch
        self._epoch = now, epoch
        return before is not None and has_started_again(before[1], now - before[0], epoch)

    async def _ask(self, question: bytes, answer: Callable[[bytes], T | None]) -> T:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect((self._host, PORT))
                for turn in range(TRIES):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FIRST * 2**turn):
                            return await _ask_once(sock, question, answer)
        except OSError as error:  # nobody listens there, or there is no way, or no socket
            raise GatewayError(f"the router at {self._host} does not speak NAT-PMP: {error.strerror}") from error
        raise GatewayError(f"the router at {self._host} does not answer (NAT-PMP)")


async def _ask_once(sock: socket.socket, question: bytes, answer: Callable[[bytes], T | None]) -> T:
    """The first answer that is one."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, question)
    while True:
        if (found := answer(await loop.sock_recv(sock, LONGEST + 1))) is not None:
            return found


def _declined(code: int) -> Declined:
    return Declined(f"the router {WORDS.get(code, f'refuses, with code {code}')} (NAT-PMP)")


# -- on the wire; pure ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where(Answer):
    """Its address outside."""

    host: str


@dataclass(frozen=True, slots=True)
class Mapped(Answer):
    """A mapping that is made, or not."""

    port: int
    external: int
    lifetime: int


def ask_where() -> bytes:
    """The question for the router's address outside."""
    return struct.pack("!BB", 0, WHERE)


def ask_to_map(port: int, external: int, lifetime: int) -> bytes:
    """The question for a mapping of a TCP port; without a lifetime, for its end."""
    return struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, external, lifetime)


def where(said: bytes) -> Where | None:
    """An answer to `ask_where`; a refusal may end after the epoch."""
    head = _head(said, WHERE)
    if head is None or (head.code == 0 and len(said) < 12):
        return None
    return Where(head.code, head.epoch, str(IPv4Address(said[8:12])) if len(said) >= 12 else "0.0.0.0")


def mapped(said: bytes, port: int) -> Mapped | None:
    """An answer to `ask_to_map` about this port."""
    head = _head(said, MAP_TCP)
    if head is None or (head.code == 0 and len(said) < 16):
        return None
    if len(said) < 16:
        return Mapped(head.code, head.epoch, port, 0, 0)
    internal, external, lifetime = struct.unpack_from("!HHI", said, 8)
    return Mapped(head.code, head.epoch, internal, external, lifetime) if internal == port else None


def _head(said: bytes, asked: int) -> Answer | None:
    if not 8 <= len(said) <= LONGEST:
        return None
    version, kind, code, epoch = struct.unpack_from("!BBHI", said)
    return Answer(code, epoch) if (version, kind) == (0, ANSWER + asked) else None


def has_started_again(before: int, seconds: float, epoch: int) -> bool:
    """Whether a router with this epoch has restarted since it had `before`, so many seconds ago."""
    return epoch + SLACK < before + seconds * 7 / 8

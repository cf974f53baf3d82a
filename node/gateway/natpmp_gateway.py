"""A router that speaks NAT-PMP: the shell of natpmp.py.

The socket is connected, so that the kernel drops what comes from anybody else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from shoal.node.gateway import natpmp
from shoal.node.gateway.values import Declined, GatewayError, Lease, Seen

FIRST, TRIES = 0.25, 4  # seconds until it is asked again, each time twice as long: 3.75 in all

T = TypeVar("T", bound=natpmp.Answer)


class NatPmpGateway:
    """The router at `host`."""

    protocol = "nat-pmp"

    def __init__(self, host: str) -> None:
        self._host = host
        self._epoch: tuple[float, int] | None = None  # when it was told us, by our clock

    async def look(self, leases: Sequence[Lease]) -> Seen:
        """See Gateway."""
        answer = await self._ask(natpmp.ask_where(), natpmp.where)
        is_new = self._is_another_life(answer.epoch)
        if answer.code not in (0, natpmp.NO_ADDRESS):
            raise _declined(answer.code)
        host = answer.host if answer.code == 0 and answer.host != "0.0.0.0" else ""
        return Seen(host, tuple(each.port for each in leases) if is_new else ())

    async def map(self, port: int, external: int, lifetime: int) -> Lease:
        """See Gateway."""
        answer = await self._ask(natpmp.ask_to_map(port, external, lifetime), lambda said: natpmp.mapped(said, port))
        if answer.code != 0 or not (answer.external and answer.lifetime):
            raise _declined(answer.code)
        return Lease(port, answer.external, answer.lifetime)

    async def unmap(self, lease: Lease) -> None:
        """See Gateway."""
        await self._ask(natpmp.ask_to_map(lease.port, 0, 0), lambda said: natpmp.mapped(said, lease.port))

    def _is_another_life(self, epoch: int) -> bool:
        now, before = asyncio.get_running_loop().time(), self._epoch
        self._epoch = now, epoch
        return before is not None and natpmp.has_begun_anew(before[1], now - before[0], epoch)

    async def _ask(self, question: bytes, answer: Callable[[bytes], T | None]) -> T:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect((self._host, natpmp.PORT))
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
        if (found := answer(await loop.sock_recv(sock, natpmp.LONGEST + 1))) is not None:
            return found


def _declined(code: int) -> Declined:
    return Declined(f"the router {natpmp.WORDS.get(code, f'refuses, with code {code}')} (NAT-PMP)")

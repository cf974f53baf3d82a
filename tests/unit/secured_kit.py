"""Two ends of one TCP connection on this machine, with Noise on it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
from libp2p.crypto import ed25519, x25519
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise import transport as noise

from shoal.protocol.net.libp2p.session import Noise, Session

LIMIT = 20.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run `test` in a trio loop, for LIMIT seconds at most."""

    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await test()

    trio.run(limited)


async def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Both ends of a TCP connection on loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return trio.SocketStream(trio.socket.from_stdlib_socket(near)), trio.SocketStream(
        trio.socket.from_stdlib_socket(far)
    )


@asynccontextmanager
async def secured(
    dialler: type[noise.Transport] = Noise, listener: type[noise.Transport] = Noise
) -> AsyncIterator[tuple[Session, Session]]:
    """Both ends after the handshake."""
    near, far = await sockets()
    keys = [ed25519.create_new_key_pair(bytes([number]) * 32) for number in (1, 2)]
    ends = [
        kind(pair, x25519.create_new_key_pair().private_key)
        for kind, pair in zip((dialler, listener), keys, strict=True)
    ]
    found: dict[int, Session] = {}

    async def shake(number: int, hands: Callable[[], Awaitable[Session]]) -> None:
        found[number] = await hands()

    async with near, far:
        raws = RawConnection(TrioTCPStream(near), True), RawConnection(TrioTCPStream(far), False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake, 0, partial(ends[0].secure_outbound, raws[0], ID.from_pubkey(keys[1].public_key)))
            nursery.start_soon(shake, 1, partial(ends[1].secure_inbound, raws[1]))
        yield found[0], found[1]

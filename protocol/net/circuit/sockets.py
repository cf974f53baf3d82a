"""Dialling from the port that we listen on, so that a router uses the same outside port for both.

Two such sockets that dial each other at the same moment become one TCP connection (RFC 9293, 3.5, simultaneous open).
So only hole punching and the probe for our outside address dial like this. Belongs to the trio thread.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.network.swarm import Swarm

from shoal.protocol.base.multiaddrs import Place

LONGER = 1.3  # each pause over the last: twelve dials in two seconds, if all are refused and the first pause is 0.02


def listening_ports(swarm: Swarm) -> dict[int, Place]:
    """The place at which we listen for each address family, by family."""
    found: dict[int, Place] = {}
    for listener in swarm.listeners.values():
        for each in getattr(listener, "listeners", ()):
            host, port, *_ = each.socket.getsockname()
            found.setdefault(each.socket.family, (host, port))
    return found


async def dial_from(source: Place, family: int, goal: Place) -> TrioTCPStream:
    """A connection from the place `source` to `goal`; OSError if it fails."""
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        await sock.bind(source)
        await sock.connect(goal)
    except BaseException:  # re-raised: a cancelled dial must leave no socket behind
        sock.close()
        raise
    return TrioTCPStream(trio.SocketStream(sock))


def family_of(host: str) -> int:
    """The address family of a numerical host."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def dial_until_connected(source: Place, goal: Place, pause: float) -> TrioTCPStream:
    """Dial until there is a connection, as an early dial may be refused; each pause is longer than the last."""
    while True:
        try:
            return await dial_from(source, family_of(goal[0]), goal)
        except OSError:
            await trio.sleep(pause)
            pause *= LONGER


async def first_to_connect(source: Place, goals: Sequence[Place], pause: float) -> TrioTCPStream:
    """Dial several places at once; returns the first connection."""
    found: list[TrioTCPStream] = []

    async def dial(goal: Place, scope: trio.CancelScope) -> None:
        found.append(await dial_until_connected(source, goal, pause))
        scope.cancel()

    async with trio.open_nursery() as nursery:
        for goal in goals:
            nursery.start_soon(dial, goal, nursery.cancel_scope)
    first, *others = found
    for each in others:
        with trio.CancelScope(shield=True):
            await each.close()
    return first

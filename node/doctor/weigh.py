"""Measuring a path: the shell of shoal.protocol.weighing. It goes where words go, on the connection in use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shoal.node.doctor.answering import FILLING
from shoal.protocol.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry
from shoal.protocol.messages.node import Refused
from shoal.protocol.network import Network
from shoal.protocol.weighing import Weighing

PART_LIMIT = 10.0  # seconds
TRIPS = 3  # whose fastest is the round trip


async def round_trip(network: Network, peer: PeerId) -> float:
    """Seconds, the least of some; an error if the peer does not answer."""
    return min([await _carry(network, peer, Carry(b"", 0)) for _ in range(TRIPS)])


async def weigh_to(network: Network, peer: PeerId, most: int) -> Weighing:
    """From us to `peer`; an error if it does not take what we send."""
    return await _weigh(most, lambda size: _carry(network, peer, Carry(FILLING[:size], 0)))


async def weigh_from(network: Network, peer: PeerId, most: int) -> Weighing:
    """The same from `peer` to us."""
    return await _weigh(most, lambda size: _carry(network, peer, Carry(b"", size)))


async def _weigh(most: int, carry: Callable[[int], Awaitable[float]]) -> Weighing:
    clock = asyncio.get_running_loop().time
    weighing, failures = Weighing(clock(), most), list[ShoalError]()

    async def one(size: int) -> None:
        try:
            took = await carry(size)
        except ShoalError as error:
            failures.append(error)
        else:
            weighing.arrived(clock(), size, took)

    flying = set[asyncio.Task[None]]()
    try:
        while True:
            while not failures and (size := weighing.next(clock())):
                flying.add(asyncio.create_task(one(size)))
            if not flying:
                break
            _, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in flying:
            task.cancel()
    if failures and weighing.rate is None:
        raise failures[0]
    return weighing


async def _carry(network: Network, peer: PeerId, message: Carry) -> float:
    """The seconds that it took; an error if it was not taken."""
    clock = asyncio.get_running_loop().time
    begin = clock()
    answer = await network.call(peer, message, PART_LIMIT)
    if isinstance(answer, Later):
        raise TransportError(f"it was measured just now; again in {answer.milliseconds / 1000:.0f} s", "later")
    if isinstance(answer, Refused):
        raise RemoteError(f"does not let the path be measured: {answer.reason}", peer)
    if not isinstance(answer, Carried) or len(answer.content) != message.wanted:
        raise RemoteError("gives other bytes than were wanted", peer)
    return clock() - begin

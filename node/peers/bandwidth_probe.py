"""Measures how fast a path is, on the connection that carries messages: the shell of measure/bandwidth_probe.py.

Who is about to join a run measures what it does not know of its line with whoever introduces it (`find_line`), so that
it learns before it begins how long the run would take it. A newcomer that has not done so measures its uplink, since
payloads show it only after the first round (`find_uplink`):
- Once in a node's life, and only while nothing is known: at most MOST bytes and two seconds each way, with one member
  that is connected over the internet without a relay. Machines on the local network are not used.
- It is the measurement of `shoal doctor`, which the other peer limits: a peer that refuses, or is silent, is skipped,
  and all are asked again later.
- The result holds until payloads show a higher rate, or, slowly, a lower one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import any_is_public
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.measure.bandwidth_probe import LARGEST, MOST, BandwidthProbe
from shoal.protocol.net.measure.rates import Meter
from shoal.protocol.net.peers.network import Network

PART_LIMIT = 10.0  # seconds
FILLING = os.urandom(LARGEST)  # random, so that nothing on the way can compress it
TRIPS = 3
PROBING = 4.0  # seconds for both ways at most, the last parts on their way included
RETRY = 5.0  # seconds until the members are looked at again


async def round_trip(network: Network, peer: PeerId) -> float:
    """The fastest of TRIPS round trips, in seconds; TransportError or RemoteError if the peer does not answer."""
    return min([await _carry(network, peer, Carry(b"", 0)) for _ in range(TRIPS)])


async def probe_to(network: Network, peer: PeerId, most: int) -> BandwidthProbe:
    """Measures the path from us to `peer`; TransportError or RemoteError if it does not take what we send."""
    return await _probe(most, lambda size: _carry(network, peer, Carry(FILLING[:size], 0)))


async def probe_from(network: Network, peer: PeerId, most: int) -> BandwidthProbe:
    """Measures the path from `peer` to us, likewise."""
    return await _probe(most, lambda size: _carry(network, peer, Carry(b"", size)))


async def _probe(most: int, carry: Callable[[int], Awaitable[float]]) -> BandwidthProbe:
    clock = asyncio.get_running_loop().time
    probe, failures = BandwidthProbe(clock(), most), list[ShoalError]()

    async def one(size: int) -> None:
        try:
            took = await carry(size)
        except ShoalError as error:
            failures.append(error)
        else:
            probe.arrived(clock(), size, took)

    flying = set[asyncio.Task[None]]()
    try:
        while True:
            while not failures and (size := probe.next(clock())):
                flying.add(asyncio.create_task(one(size)))
            if not flying:
                break
            _, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in flying:
            task.cancel()
    if failures and probe.rate is None:
        raise failures[0]
    return probe


async def _carry(network: Network, peer: PeerId, message: Carry) -> float:
    """Seconds until the message was answered; TransportError or RemoteError if it was not."""
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


# -- the line of a newcomer ----------------------------------------------------------------------------------------


async def find_line(network: Network, peers: Iterable[PeerId]) -> None:
    """Measure what is not known of our line, both ways at once, with the first of `peers` that shows it; or nothing."""
    line = network.bandwidth.far
    up, down = network.bandwidth.claim()
    with suppress(TimeoutError):
        async with asyncio.timeout(PROBING):
            for peer in far(network, peers)[:1]:
                unknown = [(line.up, probe_to)] if not up else []
                unknown += [(line.down, probe_from)] if not down else []
                await asyncio.gather(*(_suppose(meter, probe(network, peer, MOST)) for meter, probe in unknown))


async def _suppose(meter: Meter, probe: Awaitable[BandwidthProbe]) -> None:
    with suppress(ShoalError):  # it refuses, or is silent
        if (rate := (await probe).rate) is not None:
            meter.suppose(rate)


async def find_uplink(network: Network, members: Callable[[], Iterable[PeerId]]) -> None:
    """Runs until the bandwidth of our line is known, by a probe or by payloads."""
    while not any(network.bandwidth.claim()):
        for peer in far(network, members()):
            with suppress(ShoalError):  # it refuses, or is silent
                if (rate := (await probe_to(network, peer, MOST)).rate) is not None:
                    network.bandwidth.far.up.suppose(rate)
                    return
        await asyncio.sleep(RETRY)


def far(network: Network, members: Iterable[PeerId]) -> list[PeerId]:
    """The members that are connected over the internet without a relay."""
    there = {link.peer for link in network.links() if link.path != RELAYED and any_is_public(link.addresses)}
    return [peer for peer in members if peer in there]

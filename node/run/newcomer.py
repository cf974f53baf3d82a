"""How fast the uplink of a newcomer is: a short probe, as payloads show it only after its first round.

Rules:
- Once in a node's life, and only while nothing is known: PROBE bytes at most, for two seconds at most, to one member
  with whom it is connected over the internet and without a relay. Nothing is sent to machines nearby, nor when alone.
- It is that of `shoal doctor`, which the one asked bounds: who refuses, or is silent, is passed over, and all are asked
  again a while later.
- What is found holds until payloads show more, or, slowly, less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shoal.node.doctor.weigh import weigh_to
from shoal.protocol.errors import ShoalError
from shoal.protocol.ids import PeerId
from shoal.protocol.multiaddrs import any_is_public
from shoal.protocol.network import Network
from shoal.protocol.paths import RELAYED
from shoal.protocol.weighing import MOST

PROBE = MOST
AGAIN = 5.0  # seconds until it is looked again who is there


async def find_uplink(network: Network, members: Callable[[], Iterable[PeerId]]) -> None:
    """Until something is known of our line, by this or by payloads."""
    while not any(network.bandwidth.claim()):
        for peer in far(network, members()):
            if (rate := await uplink_to(network, peer)) is not None:
                network.bandwidth.far.up.suppose(rate)
                return
        await asyncio.sleep(AGAIN)


def far(network: Network, members: Iterable[PeerId]) -> list[PeerId]:
    """Those with whom we are connected so that it shows our line."""
    there = {link.peer for link in network.links() if link.path != RELAYED and any_is_public(link.addresses)}
    return [peer for peer in members if peer in there]


async def uplink_to(network: Network, peer: PeerId) -> float | None:
    """Bytes a second; None if the peer does not take part."""
    try:
        return (await weigh_to(network, peer, PROBE)).rate
    except ShoalError:
        return None

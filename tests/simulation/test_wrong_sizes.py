"""A member whose contributions are of an impossible size is left out of the mean, and costs the others no time."""

from __future__ import annotations

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.messages.averaging import Contribution
from tests.simulation.campaign import build
from tests.simulation.facts import TOO_LONG
from tests.simulation.links import LAN
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, peers_named

SOON = 300.0  # virtual seconds


def spoil(node: Peer) -> None:
    """From now on what `node` contributes to the chunks of others is too long."""
    honest = node.payload_of

    def payload_of(message: Message) -> Payload | None:
        return TOO_LONG if isinstance(message, Contribution) else honest(message)

    node.payload_of = payload_of  # type: ignore[method-assign]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_rounds_go_on_without_what_it_contributes(seed: int, dies: bool) -> None:
    """Also where it contributes to chunks whose owner has died."""
    world, oracle = build(seed, 5, LAN)
    world.run_until(lambda: oracle.newest >= 1, within=SOON)
    liar, victim, *others = peers_named(5)
    spoil(world.node(liar))

    def kill(peer: PeerId) -> None:
        if world.is_alive(victim) and world.node(victim).phase() == "scatter" and oracle.newest >= 2:
            world.kill(victim)

    if dies:
        world.watchers.append(kill)
    world.run_until(lambda: oracle.newest >= 6, within=SOON)
    assert {error.peer for _, error in world.errors} <= {liar}, "early ones are refused"
    assert not oracle.voided
    assert liar in world.node(others[0]).member.log.register.voters
    assert world.is_alive(victim) is not dies
    assert {event.peer for peer in others for event in world.node(peer).blamed} == {liar}

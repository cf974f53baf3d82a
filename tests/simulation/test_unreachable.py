"""Members that cannot be dialled: they dial out, contribute and vote like all others, and own no chunks."""

from __future__ import annotations

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Contribution
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

NAMES = peers_named(5)


def _swarm(seed: int, unreachable: list[PeerId]) -> tuple[World[Peer], Oracle, list[PeerId]]:
    """The third value grows by whoever is sent a contribution."""
    shape = Shape(start_members=len(NAMES), unreachable=tuple(unreachable))
    world, oracle = build(seed, len(NAMES), LAN, shape)
    owners: list[PeerId] = []

    def note(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Contribution):
            owners.append(effect.to)

    world.taps.append(note)
    return world, oracle, owners


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_they_take_part_and_own_nothing_whoever_dies(seed: int) -> None:
    unreachable = [NAMES[seed], NAMES[(seed + 2) % 5]]
    world, oracle, owners = _swarm(seed, unreachable)
    world.run_until(lambda: oracle.newest >= 3, within=60.0)
    victim = next(peer for peer in NAMES if peer not in unreachable)
    world.kill(victim)
    goal = oracle.newest + 3
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=60.0)
    members = oracle.decisions[goal].roster
    assert sorted(members) == [peer for peer in NAMES if peer != victim]
    assert owners
    assert not set(owners) & set(unreachable)


def test_nobody_gets_through_to_them_before_they_have_dialled() -> None:
    world, _, _ = _swarm(1, [NAMES[4]])
    processes = world._processes
    assert not world.post.has_way(processes[NAMES[0]], processes[NAMES[4]])
    world.run(1.0)
    assert world.post.has_way(processes[NAMES[0]], processes[NAMES[4]])

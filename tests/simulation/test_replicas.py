"""Swarms of replicas: who meets whom, and that everybody goes on."""

from __future__ import annotations

import pytest

from shoal.protocol.replicas.events import Lapse
from shoal.protocol.replicas.meeting import pairs
from tests.simulation.links import LAN, WAN, Link
from tests.simulation.replicas import Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.world import World


def all_at(world: World[Replica], round: int) -> bool:
    """Whether all of the living are at `round`, or beyond."""
    return all(node.standing >= round for node in world.nodes())


@pytest.mark.parametrize("link", [LAN, WAN])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_in_peace_all_meet_whom_the_seed_has_drawn(count: int, link: Link) -> None:
    world, oracle = build(1, count, link)
    world.run_until(lambda: all_at(world, 10), within=60.0)
    for round in range(1, 11):
        drawn = pairs(b"simulated", round, peers_named(count))
        assert oracle.partners(round) == {a: b for a, b in drawn} | {b: a for a, b in drawn}
    assert not oracle.lapses
    assert all(event.is_mutual for event in oracle.exchanged.values())
    assert not world.errors

"""A run without a quorum waits, and goes on when the quorum is back, however long that takes."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.swarm import peers_named

CREATOR, *OTHERS = peers_named(4)


@pytest.mark.parametrize("seconds", [20.0, 100.0, 600.0])
def test_a_creator_that_is_away_in_round_1_is_waited_for(seconds: float) -> None:
    world, oracle = build(1, 4, LAN)
    world.run(1.0)
    world.network.partition([CREATOR], OTHERS)
    world.run(seconds)
    assert oracle.newest == 0
    world.network.heal()
    world.run_until(lambda: all(node.round >= 2 for node in world.nodes()), within=90.0)
    assert not world.errors

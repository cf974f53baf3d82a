"""Long training with few messages is no reason for suspicion, and the round that follows is watched from its start."""

from __future__ import annotations

import pytest

from shoal.protocol.base.effects import Effect
from shoal.protocol.membership import adaptive_probing
from tests.simulation import swarm
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

NAMES = peers_named(5)
TRAINING = 640.0  # seconds at most, and half of that at least
WITHIN = (
    10.0  # seconds, rest or no rest: whoever is ready asks each of the others within 4, and a verdict takes up to 6
)


def resting(world: World[Peer]) -> list[bool]:
    """The members whose probing rests, each by its own clock."""
    found: list[bool] = []

    def note(node: Peer, now: float) -> list[Effect]:
        found.append(node.member.membership.probing.is_resting(now))
        return []

    for peer in world.living():
        world.command(peer, note)
    return found


@pytest.mark.parametrize("seed", seeds(2, 6))
@pytest.mark.parametrize("may_rest", [False, True])
def test_who_dies_as_a_round_begins_is_missed_as_soon_as_ever(
    monkeypatch: pytest.MonkeyPatch, may_rest: bool, seed: int
) -> None:
    if not may_rest:
        monkeypatch.setattr(adaptive_probing, "MOST", 1.0)
    monkeypatch.setattr(swarm, "TRAINING", TRAINING)
    shape = Shape(start_members=len(NAMES), min_members=len(NAMES), slack=2 * TRAINING)
    world, _ = build(seed, len(NAMES), LAN, shape, unnoticed=1.0)
    matching = lambda: [node.me for node in world.nodes() if node.phase() == "matching"]  # noqa: E731
    world.run(TRAINING / 2 - 1)
    assert resting(world) == [may_rest] * len(NAMES)
    world.run_until(lambda: bool(matching()), within=TRAINING)
    (ready,) = matching()
    victim = next(name for name in reversed(NAMES) if name != ready)
    world.kill(victim)
    took = world.run_until(lambda: not world.node(ready).member.membership.is_alive(victim), within=60.0)
    print(f"seed {seed}: {took:.1f} s")
    assert took <= WITHIN


def test_a_run_that_waits_for_members_rests() -> None:
    world, _ = build(1, 2, LAN, Shape(start_members=3, min_members=3))
    world.run(300.0)
    assert {node.phase() for node in world.nodes()} == {"matching"}
    assert resting(world) == [True, True]

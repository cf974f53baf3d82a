"""Plays of the end of a run of replicas: all who are there come to one model, and a broken promise is named."""

from __future__ import annotations

import random

from tests.simulation.links import WAN
from tests.simulation.promises import Violation
from tests.simulation.replicas import TRAINING, Oracle, Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.uplink import PAYLOAD
from tests.simulation.world import World

PROMISE = "One final model"
LAST = 6
EXCHANGE = 10.0  # virtual seconds that it takes on a slow line
PATIENCE = 30.0  # virtual seconds without a quorum


def swarm(seed: int, shape: Shape) -> tuple[World[Replica], Oracle]:
    """Four members; all who train have a vote."""
    world, oracle = build(seed, 4, WAN, shape)
    voters = 4 - len(shape.keepers)
    world.run_until(lambda: all(len(node.member.log.register.voters) == voters for node in world.nodes()), within=100.0)
    return world, oracle


def end_as_one(world: World[Replica], within: float) -> None:
    """All who live are through the last round soon, know that it was the last, and hold the same."""

    def is_over() -> bool:
        known = [
            (node.member.phase, node.member.log.register.is_over)
            for node in world.nodes()
            if node.member.base_round == node.standing  # so its application is told, too
        ]
        same = {(node.member.log.register.branch, *node.state) for node in world.nodes()}
        return known == [("keeping", True)] * len(world.living()) and len(same) == 1

    try:
        world.run_until(is_over, within)
    except Violation:
        raise
    except AssertionError as error:
        raise Violation(PROMISE, f"not all who are there have ended with one model within {within:.0f} s") from error
    assert not world.errors


def slow_lines(seed: int) -> World[Replica]:
    """Exchanges last longer than training, so who is left over in the last one is ready long before the others."""
    names = peers_named(5)
    lines = tuple((name, 4 * PAYLOAD / EXCHANGE) for name in names[:3])
    world, oracle = build(
        seed, 3, WAN, Shape(start_members=3, last=LAST, joiners=(names[4],), uplinks=lines), newcomers=2
    )
    end_as_one(world, within=1000.0)
    (result,) = oracle.results.values()
    if {made.count for made in result.decision.means} != {3}:
        raise Violation(PROMISE, "somebody who is there is not in it")
    return world


def killed_near_the_end(seed: int) -> None:
    """One is killed at any moment of the last two rounds, whatever it does then; it comes back, or never does."""
    rng, names = random.Random(f"killed near the end {seed}"), peers_named(4)
    keepers = (names[3],) if seed % 2 else ()
    world, oracle = swarm(seed, Shape(start_members=4 - len(keepers), last=LAST, keepers=keepers))
    world.run_until(lambda: any(node.standing >= LAST - 2 for node in world.nodes()), within=100.0)
    world.run(rng.uniform(0.0, 3.0 * TRAINING))
    struck = rng.choice(names)
    world.kill(struck)
    end_as_one(world, within=300.0)
    if rng.random() < 0.7:
        world.start(struck)
        end_as_one(world, within=100.0)
    assert len(oracle.results) == 1


def both_parts_end(seed: int) -> None:
    """Both halves of a cut run go on as branches, and end; then they meet."""
    names = random.Random(f"both ended {seed}").sample(peers_named(4), 4)
    world, oracle = swarm(seed, Shape(start_members=4, last=25, continue_after=PATIENCE))
    halves = names[:2], names[2:]
    world.network.partition(*halves)
    world.run_until(
        lambda: all(node.member.phase == "keeping" and node.member.log.register.is_over for node in world.nodes()),
        within=1000.0,
    )
    assert len(oracle.results) == 2
    world.network.heal()
    end_as_one(world, within=60.0)

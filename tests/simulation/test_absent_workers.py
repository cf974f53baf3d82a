"""A node without its worker keeps its vote: it joins each round at once with nothing, and holds up nobody."""

from __future__ import annotations

import random
from functools import partial

import pytest

from shoal.protocol.averaging.events import Committed
from tests.simulation.campaign import build, make_peace
from tests.simulation.links import LAN, Link
from tests.simulation.seeds import seeds
from tests.simulation.swarm import TRAINING, Peer, Shape, peers_named
from tests.simulation.world import World

SEEDS = seeds(3, 16)
SLACKS = (0.0, 60.0)


def swarm_of(count: int, slack: float = 0.0, seed: int = 1) -> tuple[World[Peer], list[int]]:
    """A swarm that has committed its first round, and the weights of each round that is committed after it."""
    world, _ = build(seed, count, LAN, Shape(start_members=count, slack=slack))
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)
    seen: list[int] = []
    node = world.node(peers_named(count)[0])
    react = node.on_event

    def on_event(now: float, event: object) -> object:
        if isinstance(event, Committed):
            seen.append(sum(weight > 0 for weight in event.decision.result.weights))
        return react(now, event)  # type: ignore[arg-type]

    node.on_event = on_event  # type: ignore[method-assign, assignment]
    return world, seen


@pytest.mark.parametrize("slack", SLACKS)
@pytest.mark.parametrize("who", [0, 1])
def test_of_two_the_other_goes_on_at_its_own_pace(slack: float, who: int) -> None:
    world, weights = swarm_of(2, slack)
    world.command(peers_named(2)[who], Peer.lose_worker)
    took = world.run_until(lambda: len(weights) >= 10, within=600.0)
    assert took < 10 * (TRAINING + 1.0)
    assert weights[1:] == [1] * len(weights[1:])
    assert not world.errors


@pytest.mark.parametrize("slack", SLACKS)
def test_nothing_is_committed_while_all_are_away_and_who_is_back_counts_at_once(slack: float) -> None:
    world, weights = swarm_of(3, slack)
    names = peers_named(3)
    for name in names:
        world.command(name, Peer.lose_worker)
    world.run(5.0)  # a round that was under way may end
    before = len(weights)
    world.run(100.0)
    assert len(weights) == before, "nobody has trained anything"
    world.command(names[1], Peer.regain_worker)
    took = world.run_until(lambda: len(weights) > before, within=600.0)
    assert took < TRAINING + 10.0
    assert weights[before] == 1
    world.command(names[0], Peer.regain_worker)
    world.command(names[2], Peer.regain_worker)
    world.run_until(lambda: weights[-1] == 3, within=60.0)
    assert not world.errors


def test_who_is_back_while_a_group_is_at_work_counts_in_the_next_if_that_one_fails() -> None:
    """Else nobody there has trained anything once the only one that had is dead."""
    world, weights = swarm_of(3)
    back, dead, away = peers_named(3)
    for name in (back, away):
        world.command(name, Peer.lose_worker)
    world.run_until(lambda: len(weights) >= 3, within=60.0)
    world.run_until(lambda: world.node(back).member.phase != "reducing", within=60.0)
    world.run_until(lambda: world.node(back).member.phase == "reducing", within=60.0, every=0.001)
    before = len(weights)
    world.node(back).has_worker = True
    world.command(back, Peer._submit)
    world.kill(dead)
    world.run_until(lambda: len(weights) > before, within=120.0)
    assert weights[before] == 1
    assert not world.errors


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_come_and_go_and_no_promise_is_broken(seed: int) -> None:
    rng = random.Random(f"workers {seed}")
    count = rng.choice((2, 2, 3, 3, 4, 5, 8))
    names = peers_named(count)
    link = Link(rng.choice((0.0005, 0.02, 0.08)), rng.choice((0.002, 0.03)), rng.choice((0.0, 0.0, 0.02)), 0.0)
    world, oracle = build(seed, count, link, Shape(start_members=count, slack=rng.choice(SLACKS)))
    told: list[tuple[float, float, str]] = []
    for _ in range(rng.randint(1, 4 * count)):
        name, gone, back = rng.choice(names), rng.uniform(0.0, 15.0), rng.expovariate(0.5)
        told.append((round(gone, 2), round(gone + back, 2), name))
        world.at(gone, partial(world.command, name, Peer.lose_worker))
        world.at(gone + back, partial(world.command, name, Peer.regain_worker))
    if rng.random() < 0.5:
        victim, when = rng.choice(names), rng.uniform(2.0, 15.0)
        told.append((round(when, 2), round(when + 2.0, 2), f"{victim} dies"))
        world.at(when, partial(world.kill, victim))
        world.at(when + 2.0, partial(world.restart, victim))
    try:
        world.run(60.0)
        for name in names:
            if world.is_alive(name):
                world.command(name, Peer.regain_worker)
        make_peace(world, oracle)
        assert not world.errors
    except Exception as error:
        error.add_note(f"seed {seed}; {count} peers; {link}; {told}")
        raise

"""Each part of a family has exactly one peer soon after the last fault, whoever came, went or died; all finish."""

from __future__ import annotations

import pytest

from shoal.node.experts.claims import LEASE, LOOK, SETTLE
from tests.simulation.families import DELAY, TICK, World
from tests.simulation.seeds import seeds

MOST_DELAY = DELAY[1]
SOON = LEASE + 3 * (1.1 * LOOK + SETTLE)  # a lease, and a look for each of three claims that collide


def only_owners(world: World, parts: int) -> bool:
    owners = world.owners()
    return sum(len(each) == 1 for each in owners.values()) == parts and all(len(each) <= 1 for each in owners.values())


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_as_many_peers_as_parts_take_one_each(seed: int) -> None:
    world = World(seed, parts=6, rounds=10_000)
    world.come(6)
    world.run(3 * (1.1 * LOOK + SETTLE))
    assert only_owners(world, 6), world.owners()
    takes = sum(peer.takes for peer in world.peers)
    world.run(600)
    assert only_owners(world, 6)
    assert sum(peer.takes for peer in world.peers) == takes, "a part has changed hands in peace"


def test_who_loses_a_draw_takes_what_is_left_without_waiting_for_the_next_look() -> None:
    took = []
    for seed in range(20):
        world = World(seed, parts=6, rounds=10_000)
        world.come(6)
        while not only_owners(world, 6):
            world.run(TICK)
        took.append(world.now)
    print(sorted(took))
    assert sorted(took)[10] <= 3 * (SETTLE + MOST_DELAY), "three draws, in the median; no look among them"


def test_who_has_finished_a_part_takes_the_next_without_waiting_for_the_next_look() -> None:
    world = World(1, parts=4, rounds=4, pace=1.0)
    world.come()
    while world.furthest() != world.lasts:
        world.run(TICK)
    assert world.now <= 3 + 4 * (4 * world.pace + SETTLE + MOST_DELAY + 3 * TICK)


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_a_part_whose_owner_died_is_taken_over_from_its_file_well_within_two_minutes(seed: int) -> None:
    world = World(seed, parts=4, rounds=10_000)
    world.come(5)
    world.run(200)
    assert only_owners(world, 4)
    victim = world.rng.choice([peer for peer in world.peers if peer.claims.mine is not None])
    assert victim.claims.mine is not None
    part, published = victim.claims.mine.part, victim.claims.mine.published
    world.die(victim)
    died, before = world.now, world.furthest()[part]
    while not world.owners()[part]:
        world.run(0.5)
    assert world.now - died <= LEASE + 2 * 1.1 * LOOK + SETTLE + MOST_DELAY + 2 * TICK < 120  # one reading misses it
    (successor,) = (peer for peer in world.peers if peer.name in world.owners()[part])
    assert successor.round >= min(published, before) > 0, "it began anew"
    assert only_owners(world, 4)


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_after_any_churn_each_part_has_one_owner_in_bounded_time(seed: int) -> None:
    world = World(seed, parts=5, rounds=10_000)
    world.come(4)
    for _ in range(40):
        world.run(world.rng.uniform(1, 40))
        if world.peers and world.rng.random() < 0.5:
            world.die(world.rng.choice(world.peers))
        else:
            world.come()
    world.come(max(0, 5 - len(world.peers)))
    world.run(SOON)
    assert only_owners(world, 5), world.owners()
    doubled = world.doubled
    world.run(300)
    assert only_owners(world, 5)
    assert world.doubled == doubled, "a part was trained twice in peace"


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_fewer_peers_than_parts_finish_them_all_though_some_die(seed: int) -> None:
    world = World(seed, parts=6, rounds=12)
    world.come(3)
    for _ in range(4):
        world.run(world.rng.uniform(30, 60))
        world.die(world.rng.choice(world.peers))
        world.come()
    for _ in range(60):
        world.run(20)
        if world.furthest() == world.lasts:
            break
    assert world.furthest() == world.lasts
    world.run(2 * LOOK)
    assert not any(peer.claims.mine for peer in world.peers), "a finished part is still claimed"


def test_who_comes_back_after_its_part_was_taken_over_gives_way() -> None:
    world = World(5, parts=1, rounds=10_000, pace=1e9)  # nothing is published
    world.come(2)
    world.run(60)
    (owner,) = (peer for peer in world.peers if peer.claims.mine is not None)
    world.die(owner)
    world.run(SOON)
    world.peers.append(owner)  # it was suspended, and believes in its claim
    world.run(2 * LOOK)
    assert owner.claims.mine is None
    assert owner.yields == 1
    assert only_owners(world, 1)


def test_the_furthest_published_goes_on() -> None:
    world = World(5, parts=1, rounds=10_000, pace=1e9)
    world.come(2)
    world.run(60)
    (owner,) = (peer for peer in world.peers if peer.claims.mine is not None)
    world.die(owner)
    world.run(SOON)
    owner.round = 1
    owner._train(world.now)  # it has published meanwhile, beyond the cut
    world.peers.append(owner)
    world.run(2 * 1.1 * LOOK + SETTLE)
    assert owner.claims.mine is not None
    assert only_owners(world, 1)

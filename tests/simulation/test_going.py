"""Members that do not train, or go for a while, hold up nobody, and lose nothing that was promised to them."""

from __future__ import annotations

from functools import partial

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import masked
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.scenarios import all_at, settled
from tests.simulation.seeds import seeds
from tests.simulation.swarm import TRAINING, Peer, Shape, peers_named
from tests.simulation.world import World

SOON = 60.0  # virtual seconds
A_ROUND = 1.5 * TRAINING  # seconds, with all that is said and added up


def counted(oracle: Oracle, round: int) -> list[PeerId]:
    decision = oracle.decisions[round]
    return list(masked(decision.roster, decision.result.counted))


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_who_does_not_train_holds_every_state_counts_in_none_and_has_no_vote(seed: int) -> None:
    keepers = peers_named(5)[3:]
    world, oracle = settled(seed, 5, Shape(start_members=5, keepers=tuple(keepers)))
    begin, goal = world.now, oracle.newest + 6
    world.run_until(partial(all_at, world, goal), within=SOON)
    assert world.now - begin <= 6 * A_ROUND, "nobody waits for them"
    assert all(set(counted(oracle, round)) == set(peers_named(3)) for round in range(goal - 4, goal))
    assert set(next(iter(world.nodes())).member.log.register.voters) == set(peers_named(3))
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_who_finishes_its_round_and_goes_counts_in_it_and_is_not_waited_for(seed: int) -> None:
    """What `shoal drain` does; `shoal pause` does not wait for the round. Back again it counts, and votes."""
    world, oracle = settled(seed, 4)
    name, last = world.living()[1 + seed % 3], oracle.newest + 1
    going: list[float] = []

    def go(peer: PeerId) -> None:
        node = world.node(name)
        if peer == name and node.round == last and not going:
            going.append(world.now)
            world.at(world.now, partial(world.command, name, lambda node, now: node.stop(now)))
        elif peer == name and node.has_parted and world.is_alive(name):
            world.at(world.now, partial(world.kill, name))

    world.watchers.append(go)
    world.run_until(lambda: bool(going) and not world.is_alive(name), within=SOON)
    assert name in counted(oracle, last)
    assert name not in next(iter(world.nodes())).member.log.register.voters
    world.run_until(partial(all_at, world, last + 4), within=SOON)
    assert world.now - going[0] <= 4 * A_ROUND
    world.watchers.clear()
    world.start(name)
    world.run_until(partial(_is_back, world, oracle, name), within=SOON)
    assert not world.errors


def _is_back(world: World[Peer], oracle: Oracle, name: PeerId) -> bool:
    votes = name in next(iter(world.nodes())).member.log.register.voters
    return votes and oracle.newest in oracle.decisions and name in counted(oracle, oracle.newest)


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_a_process_that_stood_still_for_ten_minutes_is_in_the_rounds_again_soon(seed: int) -> None:
    """A laptop that slept: what it had said counts no more, and it catches up with what was decided."""
    world, oracle = build(seed, 4, LAN)
    world.run_until(lambda: oracle.newest >= 3, within=SOON)
    name = world.living()[seed % 4]
    world.pause(name)
    world.run(600.0)
    newest = oracle.newest
    assert newest > 100, "the others go on"
    world.resume(name)
    world.run_until(partial(_is_back, world, oracle, name), within=SOON)
    assert not world.errors

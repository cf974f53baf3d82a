"""A run that can decide nothing any more goes on as a branch of its log, with those who are left."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.keeper import LOOK
from shoal.protocol.member.presence import GOING
from shoal.protocol.messages.log import Register
from tests.simulation.campaign import build
from tests.simulation.disks import lose_the_state
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

SOON = 60.0  # virtual seconds
ROUNDS = 3


def swarm(seed: int, peers: int, **more: Any) -> tuple[World[Peer], Oracle]:
    """All of them vote."""
    world, oracle = build(seed, peers, LAN, Shape(start_members=peers, **more))
    world.run_until(lambda: len(register(world).voters) == peers, within=SOON)
    return world, oracle


def register(world: World[Peer], peer: PeerId | None = None) -> Register:
    node = world.node(peer) if peer is not None else next(iter(world.nodes()))
    return node.member.log.register


def newest(oracle: Oracle) -> int:
    """The last round that is decided on any branch."""
    return max((each.newest for each in oracle.branches.values()), default=0)


def go_on(world: World[Peer], peer: PeerId) -> None:
    world.node(peer).member.log.check_going_on()
    world.command(peer, lambda node, now: node.member.go_on(now))


def kill_the_needed(world: World[Peer]) -> list[PeerId]:
    """So many voters, the first ones first, that the others can decide nothing; those others."""
    voters = list(register(world).voters)
    while next(iter(world.nodes())).member.log.is_quorum(voters):
        world.kill(voters.pop(0))
    return voters


@pytest.mark.parametrize("seed", seeds(4, 20))
@pytest.mark.parametrize("peers", [2, 3, 5])
def test_those_who_are_left_go_on_once_one_is_told_to(seed: int, peers: int) -> None:
    world, oracle = swarm(seed, peers)
    left = kill_the_needed(world)
    world.run(30.0)
    before, number = newest(oracle), register(world, left[0]).number
    go_on(world, left[-1])
    world.run_until(lambda: all(node.round >= before + ROUNDS for node in world.nodes()), within=SOON)
    assert {register(world, peer).branch for peer in left} == {register(world, left[0]).branch}
    assert set(register(world, left[0]).voters) == set(left)
    assert register(world, left[0]).number > number
    assert not world.errors


def has_parted(world: World[Peer], peer: PeerId) -> bool:
    return world.node(peer).has_parted


def stop_all(world: World[Peer], names: list[PeerId]) -> None:
    """In this order, each in order; the last one keeps the only vote."""
    for name in names:
        world.command(name, lambda node, now: node.stop(now))
        world.run_until(partial(has_parted, world, name), within=GOING + 1.0)
        world.kill(name)


@pytest.mark.parametrize("seed", seeds(3, 60))
@pytest.mark.parametrize(("peers", "bare"), [(2, 0), (3, 0), (3, 1), (5, 0), (5, 3)])
def test_all_stopped_in_order_and_the_last_to_stop_is_lost_for_good(seed: int, peers: int, bare: int) -> None:
    """Whoever had left before goes on where the log ends that any of them has, and holds the state of.

    So many of them, the first to stop, have lost their states; a round needs two who have one.
    """
    rng = random.Random(f"last to stop {seed}")
    world, oracle = swarm(seed, peers, continue_after=PATIENCE, min_members=2 if bare else 1)
    names = peers_named(peers)
    rng.shuffle(names)
    stop_all(world, names)
    newest_here = register(world, names[-1]).parts[0].round
    for name in names[:bare]:
        lose_the_state(world.disks[name], rng)
    world.run(rng.uniform(0.0, 100.0))
    for name in names[:-1]:
        world.at(world.now + rng.uniform(0.0, 20.0), partial(world.start, name))
    back = world.now
    left = set(names[:-1])
    world.run_until(
        lambda: set(world.living()) == left and all(node.round >= newest_here + ROUNDS for node in world.nodes()),
        within=20.0 + LOOK + PATIENCE + SOON,
    )
    print(f"\nseed {seed}: three rounds {world.now - back:.0f} s after the start")
    assert {register(world, name).branch for name in left} == {register(world, names[0]).branch}
    world.run_until(lambda: set(register(world, names[0]).voters) == left, within=SOON)  # one may have been late
    world.start(names[-1])
    world.run_until(lambda: len(register(world, names[0]).voters) == peers, within=2 * SOON)
    goal = newest(oracle) + ROUNDS
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_who_can_decide_founds_nothing(seed: int) -> None:
    world, _ = swarm(seed, 3)
    with pytest.raises(LocalError, match="can decide all by themselves"):
        go_on(world, peers_named(3)[1])


@pytest.mark.parametrize("seed", seeds(4, 20))
@pytest.mark.parametrize("is_late", [False, True])
def test_who_comes_back_follows_and_so_does_who_comes_anew(seed: int, is_late: bool) -> None:
    """Also when the entries before the branch are no longer in memory."""
    world, oracle = swarm(seed, 2)
    first = register(world).voters[0]
    (other,) = kill_the_needed(world)
    world.run(30.0)
    go_on(world, other)
    goal = newest(oracle) + ROUNDS
    if is_late:
        world.run_until(lambda: register(world, other).number > 300, within=3000.0, every=5.0)
        goal = newest(oracle) + ROUNDS
    world.disks[first]["was_away"] = True  # type: ignore[assignment]
    world.start(first)
    newcomer = PeerId("p02")
    world.start(newcomer)
    world.run_until(
        lambda: newest(oracle) >= goal and all(node.round >= goal for node in world.nodes()), within=2 * SOON
    )
    assert len({register(world, peer).branch for peer in (first, other, newcomer)}) == 1
    world.run_until(lambda: len(register(world, other).voters) == 3, within=SOON)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(4, 20))
def test_a_restart_is_on_the_branch_again(seed: int) -> None:
    world, oracle = swarm(seed, 3)
    left = kill_the_needed(world)
    world.run(30.0)
    go_on(world, left[0])
    world.run_until(lambda: len(register(world, left[0]).earlier) == 1, within=SOON)
    branch = register(world, left[0]).branch
    for peer in left:
        world.kill(peer)
    for peer in left:
        world.start(peer)
    goal = newest(oracle) + ROUNDS
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    assert register(world, left[0]).branch == branch


PATIENCE = 30.0  # seconds without a quorum
CUTS = {
    "3 | 3": (3, 3),
    "4 | 2": (4, 2),
    "2 | 2 | 2": (2, 2, 2),
    "1 | 1": (1, 1),
    "2 | 1": (2, 1),
    "1 | 2": (1, 2),
}


@pytest.mark.parametrize("seed", seeds(2, 40))
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_run_is_one_again_soon_after_it_is_whole(cut: str, seed: int) -> None:
    """Each part without a quorum goes on by itself; of the branches that with the most tokens is the run."""
    rng, sizes = random.Random(f"cut {cut} {seed}"), CUTS[cut]
    world, oracle = swarm(seed, sum(sizes), continue_after=PATIENCE)
    names = peers_named(sum(sizes))
    rng.shuffle(names)
    groups = [names[sum(sizes[:place]) : sum(sizes[: place + 1])] for place in range(len(sizes))]
    world.network.partition(*groups)
    world.run(PATIENCE + rng.uniform(20.0, 120.0))
    assert len({register(world, peer).branch for peer in names}) > 1
    world.network.heal()
    took = world.run_until(lambda: is_one(world), within=SOON)
    goal = newest(oracle) + ROUNDS
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    world.run_until(lambda: len(register(world).voters) == len(names), within=SOON)
    print(f"{cut}: one history {took:.1f} s after the cut was mended")


def is_one(world: World[Peer]) -> bool:
    """All are members of one branch, and on its state."""
    registers = [node.member.log.register for node in world.nodes()]
    last = max(registers, key=lambda each: each.number)
    is_same = {each.branch for each in registers} == {last.branch}
    return is_same and {member.peer for member in last.members} == set(world.living())

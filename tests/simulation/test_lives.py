"""Members of a run with a log that come late, were away for long, or stop: they are back in the rounds soon."""

from __future__ import annotations

import random
from functools import partial

import pytest

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.core import TAIL
from shoal.protocol.log.keeper import ABSENT
from shoal.protocol.member.presence import GOING
from tests.simulation import swarm
from tests.simulation.campaign import build
from tests.simulation.disks import lose_power, lose_the_state
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

SOON = 90.0  # virtual seconds


def everywhere(world: World[Peer], round: int) -> bool:
    return all(node.round >= round for node in world.nodes())


def voters(world: World[Peer]) -> set[PeerId]:
    return set(next(iter(world.nodes())).member.log.register.voters)


def goes_on(world: World[Peer], oracle: Oracle, rounds: int = 3) -> None:
    """All who live come together in the rounds, soon."""
    goal = oracle.newest + rounds
    world.run_until(lambda: everywhere(world, goal), within=SOON)
    assert not world.errors


@pytest.fixture(scope="module")
def long_run() -> tuple[World[Peer], Oracle]:
    """A run of three whose log is longer than what they keep in memory of it; one was away since the beginning."""
    world, oracle = build(5, 4, LAN, Shape(start_members=3))
    world.run_until(lambda: len(voters(world)) == 4, within=SOON)
    world.kill(PeerId("p03"))
    world.run_until(lambda: next(iter(world.nodes())).member.log.register.number > TAIL + 50, within=3000.0, every=5.0)
    return world, oracle


def test_who_comes_late_or_was_away_for_long_gets_to_the_end_of_a_long_log(
    long_run: tuple[World[Peer], Oracle],
) -> None:
    world, oracle = long_run
    assert PeerId("p03") not in voters(world), "it was silent for long, and was removed"
    for late in ("p03", "p04"):
        world.start(PeerId(late))
    goes_on(world, oracle)
    world.run_until(lambda: len(voters(world)) == 5, within=SOON)
    for name in ("p03", "p04"):  # what was shown to them is on their disks, and they show it to others
        world.restart(PeerId(name))
    goes_on(world, oracle)
    for name in ("p00", "p01", "p02"):
        world.kill(PeerId(name))
        goes_on(world, oracle, rounds=1) if name != "p02" else None
    world.start(PeerId("p05"))
    world.start(PeerId("p00"))
    goes_on(world, oracle)


def test_a_run_of_one_goes_on_after_it_was_killed() -> None:
    world, oracle = build(1, 1, LAN)
    for _ in range(5):
        world.run(4.3)
        world.restart(PeerId("p00"))
    goes_on(world, oracle)
    assert oracle.newest > 8


@pytest.mark.parametrize("seed", range(6))
def test_all_are_killed_at_once_and_go_on_where_they_were(seed: int) -> None:
    world, oracle = build(seed, 3 + seed % 3, LAN)
    rng = random.Random(f"all at once {seed}")
    for _ in range(4):
        world.run(rng.uniform(3.0, 12.0))
        before = oracle.newest
        for name in world.living():
            world.kill(name)
        world.run(1.0)
        for name in world.disks:
            world.at(world.now + rng.uniform(0.0, 2.0), partial(world.start, name))
        world.run(2.1)
        goes_on(world, oracle)
        assert set(range(1, before + 1)) <= set(oracle.results), "a decided round is lost"


@pytest.mark.parametrize("seed", range(4))
def test_all_are_killed_at_once_and_one_of_two_loses_its_state(seed: int) -> None:
    """A round needs both, and the other one holds no state but the newest, on which nothing was decided yet."""
    world, oracle = build(seed, 2, LAN, Shape(start_members=2, min_members=2))
    rng = random.Random(f"one of two {seed}")
    world.run_until(lambda: len(voters(world)) == 2, within=SOON)
    world.run(rng.uniform(0.0, 10.0))
    names = world.living()
    for name in names:
        world.kill(name)
    lose_the_state(world.disks[names[seed % 2]], rng)
    for name in names:
        world.start(name)
    goes_on(world, oracle)


@pytest.mark.parametrize("seed", range(6))
def test_all_are_killed_at_once_and_those_who_come_back_go_on_without_the_others(seed: int) -> None:
    """Two of five never do. Nobody has heard them since, and one of them was to propose."""
    world, oracle = build(seed, 5, LAN)
    world.run_until(lambda: len(voters(world)) == 5, within=SOON)
    world.run(random.Random(f"two of five {seed}").uniform(0.0, 5.0))
    node = next(iter(world.nodes()))
    order, first = node.member.log.register.voters, node.member.log.proposer
    gone = {first, order[(order.index(first) + 1 + seed % 2) % 5]}
    for name in world.living():
        world.kill(name)
    for name in world.disks:
        if name not in gone:
            world.start(name)
    back = world.now
    goes_on(world, oracle)
    print(f"\nseed {seed}: three rounds {world.now - back:.1f} s after the start")
    world.run_until(lambda: not gone & voters(world), within=2 * SOON)


@pytest.mark.parametrize("seed", range(4))
def test_all_stop_one_after_the_other_and_the_last_one_leads_them_on(seed: int) -> None:
    world, oracle = build(seed, 4, LAN)
    world.run_until(lambda: len(voters(world)) == 4, within=SOON)
    names, rng = peers_named(4), random.Random(f"stop {seed}")
    rng.shuffle(names)

    def end(peer: PeerId) -> None:
        if world.node(peer).has_parted:
            world.at(world.now, partial(world.kill, peer))

    world.watchers.append(end)
    for name in names:
        world.at(
            world.now + rng.uniform(0.0, 1.0 + seed), partial(world.command, name, lambda node, now: node.stop(now))
        )
    world.run(12.0)
    assert not world.living()
    left = [name for name in names if world.node(name).member.keeps_vote]
    assert len(left) == 1, "whoever has the last vote keeps it"
    world.watchers.remove(end)
    rng.shuffle(names)
    for name in names:
        if name != left[0]:
            world.start(name)
    world.run(20.0)
    newest = oracle.newest
    world.start(left[0])
    goes_on(world, oracle)
    assert oracle.newest > newest
    world.run_until(lambda: len(voters(world)) == 4, within=SOON)


@pytest.mark.parametrize("seed", range(8))
def test_a_result_whose_means_are_lost_everywhere_is_undone_and_no_other(seed: int) -> None:
    """A power cut of all, within the instant between a decision and its means being forced to the disks.

    If all processes are killed, and the machines live, the owners have what they made, and nothing is lost.
    """
    world, oracle = build(seed, 3 + seed % 2, LAN)
    world.run_until(lambda: len(voters(world)) == 3 + seed % 2, within=SOON)
    goal = oracle.newest + 2
    has_power, rng = bool(seed % 4 // 2), random.Random(f"power {seed}")

    def cut(_: PeerId) -> None:
        if oracle.newest == goal and cut in world.watchers:
            world.watchers.remove(cut)
            for name in world.living():
                world.kill(name)
                if not has_power:
                    lose_power(world.disks[name], rng)

    world.watchers.append(cut)
    world.run_until(lambda: not world.living(), within=SOON)
    for name in world.disks:
        world.start(name)
    world.run_until(lambda: everywhere(world, goal + 2), within=SOON)
    assert not world.errors
    assert (goal in oracle.results) == has_power
    assert set(range(1, goal + 2)) - {goal} <= set(oracle.results)


@pytest.mark.parametrize("seed", seeds(2, 40))
@pytest.mark.parametrize("killed_after", [None, 0, 2])
def test_what_a_quorum_says_is_lost_is_undone_also_where_it_was_applied(
    seed: int, killed_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What voters have signed counts for a while, though they may have found the bytes by now.

    All may be killed some rounds later, before there is another snapshot.
    """
    monkeypatch.setattr(swarm, "SNAPSHOT", 1000)
    world, oracle = build(seed, 3, LAN, Shape(start_members=3, min_members=2 + seed % 2))
    world.run_until(lambda: len(voters(world)) == 3, within=SOON)
    world.run(random.Random(f"undone {seed}").uniform(0.0, 5.0))
    world.run_until(lambda: everywhere(world, oracle.newest), within=SOON)
    undone = oracle.newest
    for name in world.living():
        world.command(name, say_that_the_last_is_lost)
    world.run_until(lambda: undone in oracle.voided, within=SOON)
    if killed_after is not None:
        world.run_until(lambda: everywhere(world, undone + killed_after), within=SOON)
        names = world.living()
        for name in names:
            world.kill(name)
        for name in names:
            world.start(name)
    goes_on(world, oracle)
    assert not world.errors


def say_that_the_last_is_lost(node: Peer, now: float) -> list[Effect]:
    """It is not, so it would be taken back when a later one is applied."""
    (part,) = node.member.log.register.parts
    return node.member._digest(now, node.member.log.lacks(part.result))


@pytest.mark.parametrize("seed", seeds(2, 40))
def test_disks_that_are_slower_than_rounds_hold_all_but_the_last_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second result is voted for before the first one is kept; so a power cut of all undoes one round at most."""
    monkeypatch.setattr(swarm, "FORCING", 40.0)
    world, oracle = build(seed, 4, LAN)
    rng = random.Random(f"slow disks {seed}")
    world.run_until(lambda: oracle.newest >= 3, within=SOON)
    world.run(rng.uniform(0.0, 60.0))
    newest = oracle.newest
    for name in world.living():
        world.kill(name)
        lose_power(world.disks[name], rng)
    monkeypatch.undo()
    for name in world.disks:
        world.start(name)
    world.run_until(lambda: everywhere(world, newest + 2), within=SOON)
    assert not world.errors
    assert set(range(1, newest)) <= set(oracle.results), "all but the last one"


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_who_slept_accuses_nobody_of_the_time_that_it_slept(seed: int) -> None:
    """One dies, the others' machines sleep soon after, and it is back soon after they are."""
    world, oracle = build(seed, 3, LAN, Shape(start_members=3))
    world.run_until(lambda: len(voters(world)) == 3, within=SOON)
    first, *sleepers = world.living()
    world.kill(first)
    world.run(20.0)
    assert all(not world.node(peer).member.membership.is_alive(first) for peer in sleepers)
    for peer in sleepers:
        world.pause(peer)
    world.run(600.0)
    for peer in sleepers:
        world.resume(peer)
    world.run(10.0)
    assert all(first in world.node(peer).member.log.register.voters for peer in sleepers)
    world.run_until(lambda: first not in voters(world), within=ABSENT)
    world.restart(first)
    goes_on(world, oracle)


@pytest.mark.parametrize("peers", [3, 4, 5])
@pytest.mark.parametrize("seed", seeds(2, 30))
def test_all_of_the_first_round_become_voters_together_and_the_founder_is_not_needed(seed: int, peers: int) -> None:
    """Were they added one by one, a run of three would hang on each of its first two voters for a while."""
    world, oracle = build(seed, peers, LAN, Shape(start_members=peers))
    numbers = set[int]()
    world.watchers.append(lambda peer: numbers.add(len(world.node(peer).member.log.register.voters)))
    world.run_until(lambda: len(voters(world)) == peers, within=SOON)
    assert numbers == {1, peers}
    world.run(random.Random(f"founder {seed}").uniform(0.0, 5.0))
    world.kill(next(iter(world.disks)))
    goes_on(world, oracle)


def stop(world: World[Peer], peer: PeerId) -> bool:
    """`peer` is told to stop and ends; whether it keeps a vote that is needed."""
    world.command(peer, lambda node, now: node.stop(now))
    world.run_until(lambda: world.node(peer).has_parted, within=GOING + 1.0)
    world.kill(peer)
    return world.node(peer).member.keeps_vote


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_who_stops_soon_after_a_death_keeps_its_vote_and_all_say_who_must_be_back(seed: int) -> None:
    """Were it let go, the dead one and the last one would be left, of whom the dead one is needed."""
    world, oracle = build(seed, 3, LAN, Shape(start_members=3))
    world.run_until(lambda: len(voters(world)) == 3, within=SOON)
    first, second, third = world.node(PeerId("p00")).member.log.register.voters
    world.kill(first)
    world.run(20.0)
    assert not world.node(third).member.awaited_voters
    assert stop(world, second)
    world.run(20.0)
    assert world.node(third).member.awaited_voters == [first, second]
    world.start(second)
    goes_on(world, oracle)
    assert not world.node(third).member.awaited_voters


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_who_stops_when_the_absent_are_removed_leaves_nobody_behind(seed: int) -> None:
    world, oracle = build(seed, 3, LAN, Shape(start_members=3))
    world.run_until(lambda: len(voters(world)) == 3, within=SOON)
    first, second, third = world.node(PeerId("p00")).member.log.register.voters
    world.kill(first)
    world.run_until(lambda: first not in world.node(third).member.log.register.voters, within=2 * ABSENT)
    assert not stop(world, second)
    goes_on(world, oracle)
    assert world.node(third).member.log.register.voters == (third,)

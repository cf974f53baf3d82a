"""Swarms of members under seeded faults: who is found, who is lost, how fast, and never by mistake."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.membership.adaptive_probing import EXCHANGES_MOST, MOST_OF_TWO, PROBES, PROBES_VARY
from shoal.protocol.membership.members import PeerDown, PeerLeft, PeerSuspected, State
from tests.simulation.faults import FaultPlan
from tests.simulation.links import LAN, WAN, Link
from tests.simulation.members import STRANGER, Swarm, agree, let_rest, names, settled_swarm, start_swarm, status, told
from tests.simulation.seeds import seeds

ROOT = Path(__file__).parents[2]


def unseen(world: Swarm, peer: PeerId) -> bool:
    """Whether no living member still counts `peer` among the present."""
    return not any(node.membership.is_alive(peer) for node in world.nodes())


# -- finding each other -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8, 32, 64])
def test_newcomers_find_everybody_at_once(count: int) -> None:
    world = start_swarm(count, seed=count, link=WAN)
    assert world.run_until(lambda: agree(world), within=10.0) < 1.0
    assert not world.errors


def test_a_newcomer_joins_through_the_one_seed_that_still_lives() -> None:
    world = settled_swarm(6, seed=1)
    first = names(1)[0]
    world.kill(first)
    world.run_until(lambda: unseen(world, first), within=5.0)
    newcomer = PeerId("peer-new")
    world.start(newcomer)
    assert world.run_until(lambda: agree(world), within=5.0) < 1.0


def test_a_status_reaches_everybody_soon() -> None:
    world = settled_swarm(32, seed=2)
    author = world.living()[7]
    world.run(5.0)
    world.command(author, lambda node, now: node.membership.set_status(now, status(round=9)))
    reached = lambda: all(node.membership.status(author) == status(round=9) for node in world.nodes())  # noqa: E731
    assert world.run_until(reached, within=5.0) < 1.0


def test_a_seedless_pair_is_joined_by_a_link() -> None:
    world = settled_swarm(4, seed=3)
    world.start(STRANGER)
    world.command(world.living()[2], lambda node, now: node.membership.link_up(now, STRANGER))
    assert world.run_until(lambda: agree(world), within=5.0) < 1.0


# -- losing one -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "link", "within"), [(2, LAN, 0.9), (3, LAN, 0.9), (16, LAN, 0.9), (16, WAN, 2.0)])
def test_a_killed_peer_is_dead_soon_after_its_connections_close(count: int, link: Link, within: float) -> None:
    world = settled_swarm(count, seed=4, link=link)
    world.run(10.0)
    victim = world.living()[-1]
    world.kill(victim)
    assert world.run_until(lambda: unseen(world, victim), within=5.0) <= within
    assert len(told(world, PeerDown)) == count - 1
    assert world.node(names(1)[0]).membership.state(victim) is State.DEAD


@pytest.mark.parametrize(("count", "within"), [(2, 6.0), (8, 8.0), (32, 11.0)])
@pytest.mark.parametrize("at_rest", [False, True])
def test_a_death_that_no_connection_tells_of_is_found_by_probing(count: int, within: float, at_rest: bool) -> None:
    """At rest the first probe may be a longest pause away, and all that follow come as soon as ever."""
    world = settled_swarm(count, seed=5, unnoticed=1.0)
    let_rest(world, at_rest)
    world.run(300.0 if at_rest else 10.0)
    within += at_rest * PROBES * MOST_OF_TWO * (1 + PROBES_VARY)
    victim = world.living()[-1]
    world.kill(victim)
    world.run_until(lambda: unseen(world, victim), within=within)


def test_what_half_of_the_members_notice_the_others_believe_after_a_look() -> None:
    world = settled_swarm(8, seed=6, link=LAN, unnoticed=0.5)
    world.run(10.0)
    victim = world.living()[-1]
    world.kill(victim)
    assert world.run_until(lambda: unseen(world, victim), within=10.0) < 3.0


@pytest.mark.parametrize("may_rest", [False, True])
def test_only_the_dead_die_in_ten_minutes_of_one_percent_loss(may_rest: bool) -> None:
    world = settled_swarm(8, seed=7, link=Link(delay=0.04, jitter=0.05, loss=0.01))
    let_rest(world, may_rest)
    victim = world.living()[-1]
    world.run(300.0)
    assert not told(world, PeerDown)
    world.kill(victim)
    world.run(300.0)
    assert agree(world)
    assert {event.peer for event in told(world, PeerDown) if isinstance(event, PeerDown)} == {victim}
    assert len(told(world, PeerDown)) == 7


def test_a_leaver_is_not_counted_as_lost() -> None:
    world = settled_swarm(5, seed=8)
    leaver = world.living()[-1]
    world.command(leaver, lambda node, now: node.membership.leave(now))
    world.run(0.5)
    world.kill(leaver)
    world.run(20.0)
    assert len(told(world, PeerLeft)) == 4
    assert not told(world, PeerDown)
    assert not told(world, PeerSuspected)
    assert all(node.membership.lost_since(0.0) == [] for node in world.nodes())


# -- not losing anybody ---------------------------------------------------------------------------------------


def test_a_blip_of_every_connection_loses_nobody() -> None:
    world = settled_swarm(8, seed=9)
    world.run(10.0)
    for a in world.living():
        for b in world.living():
            if a < b:
                world.reset_link(a, b)
    world.run(0.05)
    assert told(world, PeerSuspected)
    assert world.run_until(lambda: agree(world), within=5.0) < 1.0
    assert not told(world, PeerDown)


def test_hiccups_of_a_few_hundred_milliseconds_lose_nobody() -> None:
    world = settled_swarm(6, seed=10, link=LAN)
    rng = random.Random(10)
    for peer in world.living():
        time = world.now
        while time < 120.0:
            time += rng.expovariate(0.5)
            world.at(time, lambda peer=peer: world.pause(peer))  # type: ignore[misc]
            time += rng.uniform(0.1, 0.6)
            world.at(time, lambda peer=peer: world.resume(peer))  # type: ignore[misc]
    world.run(125.0)
    assert not told(world, PeerDown)
    assert agree(world)


def test_one_dead_direction_between_two_members_accuses_nobody() -> None:
    world = settled_swarm(8, seed=11)
    world.network.cut(names(8)[2], names(8)[5])
    world.run(120.0)
    assert not told(world, PeerSuspected)


def test_a_member_that_nobody_hears_dies_alone_and_comes_back() -> None:
    world = settled_swarm(8, seed=12)
    *others, mute = world.living()
    for other in others:
        world.network.cut(mute, other)
    world.run(60.0)
    blamed = {event.peer for peer in others for event in world.node(peer).told if isinstance(event, PeerDown)}
    assert blamed == {mute}
    world.network.heal()
    world.run_until(lambda: agree(world), within=60.0)


# -- rest -----------------------------------------------------------------------------------------------------


def rate(world: Swarm, seconds: float) -> float:
    """Words that are sent in a second by one member."""
    before = world.sent.total()
    world.run(seconds)
    return (world.sent.total() - before) / seconds / len(world.living())


def test_a_run_at_rest_says_little_and_news_end_the_rest() -> None:
    world = settled_swarm(6, seed=17)
    awake = rate(world, 10.0)
    world.run(300.0)
    assert rate(world, 300.0) < awake / 6
    world.command(world.living()[0], lambda node, now: node.membership.set_status(now, status(step=1)))
    world.run(2.0)
    assert rate(world, 6.0) > awake / 3
    let_rest(world, False)
    world.run(300.0)
    assert rate(world, 60.0) > awake / 3


@pytest.mark.parametrize("seed", seeds(2, 15))
@pytest.mark.parametrize("half", [1, 2, 3])
def test_half_of_a_run_at_rest_is_missed_in_time(half: int, seed: int) -> None:
    world = settled_swarm(2 * half, seed, unnoticed=1.0)
    world.run(300.0 + 1.7 * seed)  # anywhere between two probes
    left, right = world.living()[:half], world.living()[half:]
    world.network.partition(left, right)

    def are_missed() -> bool:
        lost = [node.membership.lost_since(0.0) for node in world.nodes()]
        return all(len(each) == half for each in lost)

    took = world.run_until(are_missed, within=60.0)
    print(f"{half}:{half}, seed {seed}: {took:.1f} s")
    assert took < 25.0


def test_a_pair_at_rest_is_probed_by_either_end_in_turn() -> None:
    world = settled_swarm(2, seed=18)
    world.run(300.0)
    assert rate(world, 1500.0) * 2 < 2 / (PROBES * MOST_OF_TWO * (1 - PROBES_VARY)) + 2 * 2 / EXCHANGES_MOST / 0.8


# -- stops, restarts, partitions ------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.8, 4.0, 30.0])
def test_a_stopped_member_wakes_up_without_accusing_anybody(seconds: float) -> None:
    world = settled_swarm(8, seed=13, link=LAN)
    world.run(10.0)
    sleeper = world.living()[3]
    world.pause(sleeper)
    world.run(seconds)
    world.resume(sleeper)
    world.run_until(lambda: agree(world), within=10.0)
    world.run(30.0)
    assert not [event for event in world.node(sleeper).told if isinstance(event, PeerDown)]
    assert bool(told(world, PeerDown)) == (seconds > 20.0)


@pytest.mark.parametrize("unnoticed", [0.0, 1.0])
@pytest.mark.parametrize("away", [0.0, 20.0])
def test_a_restarted_peer_comes_back_with_a_higher_incarnation(unnoticed: float, away: float) -> None:
    world = settled_swarm(6, seed=14, unnoticed=unnoticed)
    world.run(10.0)
    peer = world.living()[-1]
    world.command(peer, lambda node, now: node.membership.set_status(now, status(round=3)))
    world.run(5.0)
    world.kill(peer)
    world.run(away)
    world.start(peer)
    world.run_until(lambda: agree(world), within=5.0)
    world.run(5.0)
    for node in world.nodes():
        entry = node.membership.entry(peer)
        assert entry is not None
        assert entry.incarnation >= 1
        assert entry.status == status(round=0)


def test_even_the_last_restart_of_everybody_is_survived() -> None:
    world = settled_swarm(5, seed=15)
    for peer in world.living():
        world.restart(peer)
    world.run_until(lambda: agree(world), within=10.0)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_halves_find_each_other_after_the_cut(count: int) -> None:
    world = settled_swarm(count, seed=16)
    left, right = world.living()[: count // 2], world.living()[count // 2 :]
    world.network.partition(left, right)
    world.run(60.0)
    for side in (left, right):
        for peer in side:
            membership = world.node(peer).membership
            assert membership.alive() == [other for other in side if other != peer]
            assert len(membership.lost_since(0.0)) == count - len(side)
    world.network.heal()
    world.run_until(lambda: agree(world), within=70.0)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_after_any_faults_the_living_agree_on_who_lives(seed: int) -> None:
    peers = names(8)
    link = Link(delay=0.02, jitter=0.2, loss=0.02, duplicate=0.05)
    world = start_swarm(8, seed, link, unnoticed=0.3, seeds=8)
    plan = FaultPlan.draw(random.Random(seed), peers, count=50, horizon=60.0, phases=("member",), forever=0.2)
    plan.arm(world)
    world.run(75.0)
    world.network.heal()
    world.network.set_loss(0.0)
    try:
        world.run_until(lambda: agree(world), within=90.0)
        assert sum(world.faults.values()) > 20
        assert not world.errors
    except AssertionError as error:
        error.add_note(f"seed {seed}\n{plan}")
        raise


# -- the world itself -----------------------------------------------------------------------------------------

TRACE = """
import random
from tests.simulation.faults import FaultPlan
from tests.simulation.links import Link
from tests.simulation.members import names, start_swarm
world = start_swarm(6, 1, Link(loss=0.02, duplicate=0.02), unnoticed=0.3)
FaultPlan.draw(random.Random(1), names(6), count=30, horizon=20.0, phases=("member",)).arm(world)
world.run(30.0)
print(world.events, world.trace_digest())
"""


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-c", TRACE], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = trace("1")
    assert int(first.split()[0]) > 1000
    assert trace("2") == first


def test_another_seed_gives_another_trace() -> None:
    worlds = [start_swarm(3, seed) for seed in (1, 2)]
    for world in worlds:
        world.run(5.0)
    assert worlds[0].trace_digest() != worlds[1].trace_digest()


def test_waiting_in_vain_ends_at_its_deadline_and_names_the_seed() -> None:
    world = start_swarm(2, seed=41)
    begin = world.now
    with pytest.raises(AssertionError, match="seed 41"):
        world.run_until(lambda: False, within=0.33)
    assert world.now == begin + 0.33

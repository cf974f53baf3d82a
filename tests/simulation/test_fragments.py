"""Rounds about fragments, with different numbers of chunks in turn: no promise is broken, whoever dies or comes."""

from __future__ import annotations

from functools import partial

import pytest

from shoal.protocol.averaging.shelf import KEPT_ROUNDS
from shoal.protocol.base.ids import PeerId
from tests.simulation import campaign, single_death
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.test_rounds import EXCUSED, run_all
from tests.simulation.versions import initial_state
from tests.simulation.world import World

CYCLE = (4, 1, 9)
LATE = PeerId("p04")


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(150), marks=pytest.mark.slow)], ids=len)
def test_no_promise_is_broken_whatever_strikes(seeds: range) -> None:
    reports = run_all(partial(campaign.report_on, cycle=CYCLE), seeds)
    failures = [report.failure for report in reports if report.failure]
    assert not failures, "\n\n".join(failures[:3])
    assert sum(report.rounds for report in reports) >= 2 * len(reports)
    assert sum(report.peace.excuse != "" for report in reports) <= max(2, EXCUSED * len(reports))


@pytest.mark.parametrize("seeds", [range(16), pytest.param(range(180), marks=pytest.mark.slow)], ids=len)
def test_one_death_costs_no_more_than_the_dead_owners_share(seeds: range) -> None:
    deaths = run_all(partial(single_death.report_on, cycle=CYCLE), seeds)
    failures = [death.failure for death in deaths if death.failure]
    assert not failures, "\n\n".join(failures[:3])
    struck = {(death.role, death.moment) for death in deaths if death.struck}
    assert {role for role, _ in struck} == set(single_death.ROLES)
    assert {moment for _, moment in struck} == set(single_death.MOMENTS)
    assert any(death.resent for death in deaths), "no owner has died with chunks that others had to send again"


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_round_changes_its_fragment_of_the_state_and_no_other(seed: int) -> None:
    world, _ = swarm(seed)
    before, seen = initial_state(sum(CYCLE)), set[int]()
    while len(seen) < 2 * len(CYCLE):
        goal = len(seen) + 1
        world.run_until(partial(all_at, world, goal), within=60.0)
        node = min(world.nodes(), key=lambda node: node.round)
        assert node.round == goal, "they are never two rounds apart"
        part = Shape(cycle=CYCLE).part(goal)
        assert all(now != old for now, old in zip(node.state[part], before[part], strict=True))
        assert [*node.state[: part.start], *node.state[part.stop :]] == [*before[: part.start], *before[part.stop :]]
        before = list(node.state)
        seen.add(goal)


@pytest.mark.parametrize("seed", range(len(CYCLE)))
def test_a_newcomer_comes_in_at_any_fragment(seed: int) -> None:
    world, oracle = swarm(seed)
    world.run_until(partial(all_at, world, KEPT_ROUNDS + 4 + seed), within=120.0)
    world.start(LATE)
    world.run_until(lambda: world.node(LATE).round == oracle.newest, within=30.0)
    goal = oracle.newest + len(CYCLE) + 1
    world.run_until(partial(all_at, world, goal), within=60.0)
    assert LATE in oracle.decisions[goal].roster
    assert not world.errors


@pytest.mark.parametrize("behind", [1, 2, KEPT_ROUNDS + 2])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_one_that_fell_behind_applies_or_is_given_what_it_missed(seed: int, behind: int) -> None:
    """By a few rounds, whose bytes others still have, or by more: then the state comes whole."""
    world, oracle = swarm(seed)
    world.run_until(partial(all_at, world, 2), within=60.0)
    victim = peers_named(4)[3]
    world.pause(victim)
    goal = oracle.newest + behind
    world.run_until(lambda: oracle.newest >= goal, within=120.0)
    world.resume(victim)
    goal = oracle.newest + len(CYCLE) + 1
    world.run_until(partial(all_at, world, goal), within=90.0)
    assert victim in oracle.decisions[goal].roster
    assert not world.errors


def swarm(seed: int) -> tuple[World[Peer], Oracle]:
    """Four peers at work, and a fifth that is not there yet."""
    return build(seed, 4, LAN, Shape(start_members=4, cycle=CYCLE), newcomers=1)


def all_at(world: World[Peer], round: int) -> bool:
    return all(node.round >= round for node in world.nodes())

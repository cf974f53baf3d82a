"""Members that live and answer, but bring nothing or lie: the others go on without them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.member.presence import STEPS_ASIDE
from shoal.protocol.messages.averaging import Contribution, Have, Mean, Progress
from shoal.protocol.messages.log import Register
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer
from tests.simulation.world import World

SOON = 300.0  # virtual seconds; patience begins with ten


def wedge(node: Peer) -> None:
    """From now on the worker of `node` trains for ever."""

    def never(now: float) -> list[Effect]:
        return []

    node._submit = never  # type: ignore[method-assign]


def make_liar(node: Peer, is_waiting: bool) -> None:
    """From now on `node` brings no bytes and says nothing as proposer, but always has a good excuse."""
    honest, count = node.member._digest, itertools.count(1_000_000)

    def digest(now: float, effects: list[Effect]) -> list[Effect]:
        said = []
        for effect in honest(now, effects):
            message = effect.message if isinstance(effect, Send) else None
            if isinstance(message, Progress):
                queued = {"sent": next(count), "taken": next(count), "is_waiting": False, "is_queued": True}
                excuse = {"is_waiting": True, "is_queued": False} if is_waiting else queued
                effect = Send(effect.to, dataclasses.replace(message, **excuse))  # type: ignore[union-attr, arg-type]
            if not isinstance(message, Contribution | Mean | Have):
                said.append(effect)
        return said

    node.member._digest = digest  # type: ignore[method-assign, assignment]


def swarm(seed: int, peers: int) -> tuple[World[Peer], Oracle, list[PeerId]]:
    """A swarm that trains, in which all vote, and the order in which they would propose."""
    world, oracle = build(seed, peers, LAN)

    def register() -> Register:
        return next(iter(world.nodes())).member.log.register

    world.run_until(lambda: len(register().voters) == peers, within=SOON)
    voters, first = list(register().voters), next(iter(world.nodes())).member.log.proposer
    place = voters.index(first)
    return world, oracle, voters[place:] + voters[:place]


def practised(seed: int) -> tuple[World[Peer], Oracle, list[PeerId]]:
    """A swarm of five that has learned how long its members take."""
    world, oracle, order = swarm(seed, 5)
    begin = oracle.newest + 8
    world.run_until(lambda: oracle.newest >= begin, within=SOON)
    return world, oracle, order


@pytest.mark.parametrize(("peers", "wedged"), [(3, 1), (4, 1), (5, 2), (9, 4)])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_who_never_hands_in_is_gone_on_without(seed: int, peers: int, wedged: int) -> None:
    """The proposer is among them."""
    world, oracle, order = swarm(seed, peers)
    for peer in order[:wedged]:
        wedge(world.node(peer))
    goal = oracle.newest + 3
    world.run_until(lambda: oracle.newest >= goal, within=SOON)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_restarted_proposer_is_waited_for_no_longer_than_others(seed: int) -> None:
    """Its worker is not there yet. It was dead too shortly for the others to notice, while all of them trained."""
    world, oracle, (first, *_) = practised(seed)
    world.run_until(lambda: all(node.phase() == "training" for node in world.nodes()), within=SOON, every=0.01)
    assert world.node(first).member.log.proposer == first
    world.restart(first)
    wedge(world.node(first))
    goal = oracle.newest + 3
    world.run_until(lambda: oracle.newest >= goal, within=20.0)
    assert not world.errors


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("seed", seeds(1, 30))
def test_what_a_process_has_offered_that_is_there_no_more_is_not_waited_for(seed: int, place: int) -> None:
    """It was dead too shortly for the others to notice; the next one has nothing, and says so."""
    world, oracle, order = practised(seed)
    peer = order[place]
    world.run_until(lambda: world.node(peer).phase() == "matching", within=SOON, every=0.01)
    world.kill(peer)
    world.run(0.3)
    world.start(peer)
    world.command(peer, lambda node, now: node.lose_worker(now))
    goal = oracle.newest + 1
    world.run_until(lambda: oracle.newest >= goal, within=2.0)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_who_proposes_after_a_death_knows_how_long_members_take(seed: int) -> None:
    """It waits for one that is stuck as long as the other proposer would have done."""
    world, oracle, (first, *others) = practised(seed)
    wedge(world.node(others[-1]))
    world.kill(first)
    goal = oracle.newest + 2
    world.run_until(lambda: oracle.newest >= goal, within=18.0)
    assert not world.errors


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_full_disk_holds_the_others_up_for_seconds(seed: int, place: int) -> None:
    """Also that of the proposer; and its owner is back in the rounds once there is room."""
    world, oracle, order = swarm(seed, 5)
    world.run(5.0)
    peer = order[place]
    world.fill_disk(peer)
    for _ in range(6):
        before = oracle.newest
        world.run_until(lambda: oracle.newest > before, within=STEPS_ASIDE + 3.0)  # noqa: B023
    world.free_disk(peer)
    goal = oracle.newest + 3
    world.run_until(lambda: world.node(peer).round >= goal, within=10.0)
    world.run_until(lambda: all(len(node.member.membership.alive()) == 4 for node in world.nodes()), within=10.0)
    assert not world.errors


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("place", [0, 3, pytest.param(1, marks=pytest.mark.slow)])
def test_who_brings_nothing_and_always_has_an_excuse_is_given_up(place: int, is_waiting: bool) -> None:
    """The others go on: there are only so many payloads to move."""
    world, oracle, order = swarm(2, 4)
    make_liar(world.node(order[place]), is_waiting)
    goal = oracle.newest + 3
    world.run_until(lambda: oracle.newest >= goal, within=2 * SOON)
    assert not oracle.voided
    assert not world.errors


def test_without_a_quorum_that_is_ready_who_is_ready_waits_and_goes_on_without_the_others() -> None:
    """Whoever is ready has the votes of those who are not: they live."""
    world, oracle, order = swarm(1, 4)
    for peer in order[:3]:
        wedge(world.node(peer))
    goal = oracle.newest + 2
    world.run_until(lambda: oracle.newest >= goal, within=SOON)
    assert not world.errors

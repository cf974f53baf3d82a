"""Slow trainers: learned deadlines call them to hand in what they have; slack lets them train to the end."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from shoal.protocol.averaging.events import Committed, HandIn
from shoal.protocol.base.effects import Effect, Event, Wake
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import masked
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import TRAINING, Peer, Shape, peers_named
from tests.simulation.world import World

SLACK = 60.0  # virtual seconds
SLOW = 0.8 * SLACK  # more than the others, for each round
QUICK, ROUNDS = 10, 14  # rounds until the swarm has learned to be impatient; rounds in all
NAMES = peers_named(4)
LONG, ALIKE = 20.0, 0.2  # virtual seconds that alike members train for a round, and how far they are apart
SOON = 2.0  # virtual seconds in which a round comes to its end once all have trained, and the call for who is late


def slow_down(node: Peer, seconds: float = SLOW) -> None:
    """From now on a round's training takes `node` so many seconds more."""
    train = node._train

    def train_slowly(effects: list[Effect]) -> list[Effect]:
        *others, wake = train(effects)
        assert isinstance(wake, Wake)
        return [*others, dataclasses.replace(wake, after=wake.after + seconds)]

    node._train = train_slowly  # type: ignore[method-assign]


def train_for(node: Peer, seconds: float) -> None:
    """From now on a round's training takes `node` exactly so long."""
    train = node._train

    def train_exactly(effects: list[Effect]) -> list[Effect]:
        *others, wake = train(effects)
        assert isinstance(wake, Wake)
        return [*others, dataclasses.replace(wake, after=seconds)]

    node._train = train_exactly  # type: ignore[method-assign]


def watch(node: Peer, seen: Counter[str]) -> None:
    """Count who is asked to hand in, and the rounds that `node` commits by what is out of the ordinary in them."""
    react = node.on_event

    def on_event(now: float, event: Event) -> list[Effect]:
        seen["called"] += isinstance(event, HandIn)
        if isinstance(event, Committed):
            seen["without somebody"] += len(event.decision.result.weights) < len(NAMES)
        return react(now, event)

    node.on_event = on_event  # type: ignore[method-assign]


def play(seed: int, slack: float, slow: list[PeerId]) -> Counter[str]:
    """All unusual events in rounds with slow peers."""
    world, _ = build(seed, len(NAMES), LAN, Shape(start_members=len(NAMES), slack=slack))
    world.run_until(lambda: all(node.round >= QUICK for node in world.nodes()), within=300.0)
    seen = Counter[str]()
    for node in world.nodes():
        watch(node, seen)
        if node.me in slow:
            slow_down(node)
    world.run_until(lambda: all(node.round >= ROUNDS for node in world.nodes()), within=2 * SLOW * ROUNDS)
    assert not world.errors
    return +seen


@pytest.mark.parametrize("slow", [NAMES[:1], NAMES[1:2], NAMES[2:], NAMES[:3]])  # some lead; a quorum, and none
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_with_slack_all_are_waited_for_and_the_order_of_members_stays(seed: int, slow: list[PeerId]) -> None:
    assert play(seed, SLACK, slow) == Counter()


def test_without_slack_the_slow_are_called() -> None:
    assert play(1, 0.0, NAMES[1:2])["called"]


@pytest.mark.parametrize("slow", [NAMES[0], NAMES[3]])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_the_fast_hardly_wait_for_one_that_is_ten_times_slower_and_it_counts_all_the_same(
    seed: int, slow: PeerId
) -> None:
    world, _ = build(seed, len(NAMES), LAN, Shape(start_members=len(NAMES)))
    slow_down(world.node(slow), 9 * TRAINING)
    world.run_until(lambda: all(node.round >= QUICK for node in world.nodes()), within=300.0)
    seen = Counter[str]()
    watch(world.node(NAMES[1]), seen)
    took = world.run_until(lambda: all(node.round >= 2 * QUICK for node in world.nodes()), within=300.0)
    assert not world.errors
    assert not seen["without somebody"]
    assert took < 1.5 * QUICK * TRAINING


def join_alike(seed: int, step: float) -> tuple[World[Peer], Oracle]:
    """Alike members, and one that has just joined them, and makes long steps."""
    *fast, slow = NAMES
    world, oracle = build(seed, len(fast), LAN, Shape(start_members=len(fast), steps=((slow, step),)), newcomers=1)
    world.run_until(lambda: all(node.round >= QUICK for node in world.nodes()), within=300.0)
    for place, name in enumerate(fast):
        train_for(world.node(name), LONG + place * ALIKE / len(fast))
    goal = QUICK + ROUNDS - 1
    world.run_until(lambda: oracle.newest >= goal, within=2 * LONG * ROUNDS)
    world.start(slow)
    train_for(world.node(slow), 10 * LONG)
    world.run_until(lambda: slow in oracle.decisions[oracle.newest].roster, within=4 * LONG)
    return world, oracle


def rounds_on(world: World[Peer], oracle: Oracle, rounds: int) -> tuple[float, int]:
    """Seconds for each of the next rounds, and in how many of them the last of the members was counted."""
    slow, first = NAMES[-1], oracle.newest + 1
    took = world.run_until(lambda: oracle.newest >= first - 1 + rounds, within=2 * LONG * rounds)
    assert not world.errors
    decided = [oracle.decisions[round] for round in range(first, first + rounds)]
    return took / rounds, sum(slow in masked(each.roster, each.result.counted) for each in decided)


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("step", [1.0, 2.0, 4.0])
def test_who_joins_alike_members_counts_although_its_steps_take_longer_than_they_are_apart(
    seed: int, step: float
) -> None:
    took, counted = rounds_on(*join_alike(seed, step), rounds=20)
    assert counted >= 19
    assert took < LONG + SOON + step


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_who_cannot_come_in_time_holds_up_the_others_ever_more_rarely(seed: int) -> None:
    world, oracle = join_alike(seed, 4 * LONG)
    took, _ = rounds_on(world, oracle, rounds=40)
    assert took < 1.05 * LONG + SOON
    node = world.node(NAMES[-1])
    node.shape = dataclasses.replace(node.shape, steps=((node.me, 2.0),))  # it was busy, and is not any more
    _, counted = rounds_on(world, oracle, rounds=20)
    assert counted >= 10


@pytest.mark.parametrize("away", [NAMES[0], NAMES[3]])
def test_who_has_nothing_to_offer_hurries_nobody(away: PeerId) -> None:
    """A member whose worker loads, or that does not train, stands ready at once; the others train on all the same."""
    world, _ = build(2, len(NAMES), LAN, Shape(start_members=len(NAMES)))
    world.run_until(lambda: all(node.round >= QUICK for node in world.nodes()), within=300.0)
    world.command(away, Peer.lose_worker)
    seen = Counter[str]()
    for node in world.nodes():
        watch(node, seen)
        if node.me != away:
            slow_down(node)
    world.run_until(lambda: all(node.round >= ROUNDS for node in world.nodes()), within=2 * SLOW * ROUNDS)
    assert not world.errors
    assert not seen["called"]


def test_only_who_has_trained_waits_for_others() -> None:
    quick, slow = NAMES[:2]
    world, _ = build(1, 2, LAN, Shape(start_members=2))
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)
    slow_down(world.node(slow))
    members = {name: world.node(name).member for name in (quick, slow)}

    def one_is_ready() -> bool:
        return (members[quick].phase, members[slow].phase) == ("matching", "training")

    world.run_until(one_is_ready, within=2 * SLOW)
    assert {name: list(member.waiting_for()) for name, member in members.items()} == {quick: [slow], slow: []}

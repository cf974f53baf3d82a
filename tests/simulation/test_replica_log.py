"""Swarms of replicas and their log: it says who is a member and that all is over, and holds up no exchange."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.keeper import LOOK
from shoal.protocol.log.register import body_of
from shoal.protocol.member.presence import GOING
from shoal.protocol.messages.log import GetLog, Remove, Tip
from shoal.protocol.messages.replicas import Meet
from shoal.protocol.replicas.member import LINGER, ReplicaMember
from tests.simulation import replica_endings as endings
from tests.simulation.links import WAN
from tests.simulation.replicas import Oracle, Replica, Shape, build
from tests.simulation.seeds import seeds
from tests.simulation.swarm import peers_named
from tests.simulation.test_replicas import all_at
from tests.simulation.world import Step, World

NAMES = peers_named(5)
NEWCOMER = NAMES[4]
PATIENCE = 30.0  # virtual seconds without a quorum
FOUR = Shape(start_members=4, joiners=(NEWCOMER,))


def all_vote(world: World[Replica], count: int) -> bool:
    """Whether all of the living know of so many voters."""
    return all(len(node.member.log.register.voters) == count for node in world.nodes())


def four_voters(seed: int) -> tuple[World[Replica], Oracle]:
    """Four members that all have a vote, and a newcomer that is not there yet."""
    world, oracle = build(seed, 4, WAN, FOUR, newcomers=1)
    world.run_until(lambda: all_vote(world, 4), within=100.0)
    return world, oracle


def test_the_founder_votes_first_and_the_others_once_they_have_gone_a_round() -> None:
    world, _ = build(1, 4, WAN, FOUR)
    world.run_until(lambda: all(len(node.members()) == 4 for node in world.nodes()), within=20.0)
    assert all_vote(world, 1)
    assert not all_at(world, 1)
    world.run_until(lambda: all_vote(world, 4), within=60.0)
    assert world.node(NAMES[3]).standing >= 1


def test_exchanges_go_on_while_the_log_has_no_quorum() -> None:
    """The founder and another are gone, and with them 5 of 9 of the power. A newcomer waits until one is back."""
    world, oracle = four_voters(2)
    world.kill(NAMES[0])
    world.kill(NAMES[1])
    world.start(NEWCOMER)
    number = world.node(NAMES[2]).member.log.register.number
    reached = max(node.standing for node in world.nodes())
    world.run_until(lambda: all(world.node(name).standing >= reached + 20 for name in NAMES[2:4]), within=200.0)
    late = [round for peer, _, round in oracle.exchanged if peer == NAMES[2] and round > reached + 4]
    assert len(late) >= 12, "by their own pace, not by timeouts"
    assert {world.node(name).member.log.register.number for name in NAMES[2:4]} == {number}
    newcomer = world.node(NEWCOMER)
    assert newcomer.standing >= 0, "it has its copy"
    assert newcomer.member.base_round is None, "and does not train before it is admitted"
    assert sorted(newcomer.members()) == NAMES[:4], "though it has read the log"
    world.start(NAMES[1])
    world.run_until(lambda: NEWCOMER in [partner for partner in oracle.partners(newest(world)).values()], within=200.0)


def patient(seed: int) -> World[Replica]:
    """Four voters that do not wait for a quorum for ever, and a newcomer that is not there yet."""
    world, _ = build(seed, 4, WAN, replace(FOUR, continue_after=PATIENCE), newcomers=1)
    world.run_until(lambda: all_vote(world, 4), within=100.0)
    return world


def is_one(world: World[Replica], names: list[PeerId]) -> bool:
    """Whether all of these, and nobody else, are members and vote, by one log."""
    logs = [world.node(name).member.log.register for name in names]
    return len({log.branch for log in logs}) == 1 and all(sorted(log.voters) == names for log in logs)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_without_a_quorum_newcomers_get_in_after_a_while_and_who_was_away_is_let_in_again(seed: int) -> None:
    world = patient(seed)
    world.kill(NAMES[0])
    world.kill(NAMES[1])
    world.start(NEWCOMER)
    world.run_until(lambda: is_one(world, NAMES[2:]), within=PATIENCE + 30.0)
    world.start(NAMES[0])
    world.start(NAMES[1])
    world.run_until(lambda: is_one(world, NAMES), within=2 * PATIENCE + 60.0)
    reached = newest(world)
    world.run_until(lambda: all(node.standing >= reached + 3 for node in world.nodes()), within=60.0)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_the_halves_of_a_cut_run_are_one_again_and_each_keeps_its_replica(seed: int) -> None:
    world = patient(seed)
    halves = NAMES[:2], NAMES[2:4]
    world.network.partition(*halves)
    world.run_until(lambda: any(is_one(world, half) for half in halves), within=PATIENCE + 30.0)
    world.run(random.Random(f"halves {seed}").uniform(0.0, 60.0))
    standing = {name: world.node(name).standing for name in NAMES[:4]}
    world.network.heal()
    world.run_until(lambda: is_one(world, NAMES[:4]), within=60.0)
    assert all(world.node(name).standing >= standing[name] for name in NAMES[:4])
    reached = newest(world)
    world.run_until(lambda: all(node.standing >= reached + 3 for node in world.nodes()), within=60.0)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_all_have_stopped_and_the_last_to_stop_is_lost_for_good(seed: int) -> None:
    world = patient(seed)
    names = random.Random(f"last to stop {seed}").sample(NAMES[:4], 4)
    for name in names:
        world.command(name, lambda node, now: node.stop(now))
        world.run_until(partial(has_parted, world, name), within=GOING + LINGER + 1.0)
        world.kill(name)
    left = sorted(names[:-1])
    for name in left:
        world.start(name)
    world.run_until(lambda: is_one(world, left), within=LOOK + PATIENCE + 30.0)


def has_parted(world: World[Replica], name: PeerId) -> bool:
    return world.node(name).has_parted


def newest(world: World[Replica]) -> int:
    """The newest round after which one of the living stands."""
    return max(node.standing for node in world.nodes())


def test_who_stops_is_let_go_and_its_vote_with_it() -> None:
    world, _ = four_voters(3)
    world.command(NAMES[1], lambda node, now: node.stop(now))
    world.run_until(lambda: world.node(NAMES[1]).has_parted, within=5.0)
    world.kill(NAMES[1])
    world.run_until(lambda: NAMES[1] not in world.node(NAMES[0]).member.log.register.voters, within=5.0)
    others = [world.node(name) for name in (NAMES[0], *NAMES[2:4])]
    world.run_until(lambda: all(NAMES[1] not in node.members() for node in others), within=5.0)
    world.kill(NAMES[0])  # 3 of 7: the two others are a quorum
    world.start(NEWCOMER)
    world.run_until(lambda: NEWCOMER in world.node(NAMES[2]).members(), within=60.0)


def test_who_is_away_for_long_is_removed_and_comes_back_in_a_new_life() -> None:
    world, oracle = four_voters(4)
    world.pause(NAMES[2])
    world.run_until(lambda: NAMES[2] not in world.node(NAMES[0]).members(), within=120.0)
    world.resume(NAMES[2])
    world.run_until(lambda: NAMES[2] in oracle.partners(newest(world)), within=60.0)
    decided = [body_of(each.entry.body) for each in world.node(NAMES[0]).member.log.core.log]
    assert [each.peer for each in decided if isinstance(each, Remove)] == [NAMES[2]]
    world.run_until(lambda: all_vote(world, 4), within=60.0)


@pytest.mark.parametrize("seed", seeds(2, 40))
def test_in_the_last_round_all_are_averaged_whoever_was_left_over_before_it(seed: int) -> None:
    """Nothing follows the end, and whoever comes after it gets the result."""
    world = endings.slow_lines(seed)
    number = world.node(NAMES[0]).member.log.register.number
    world.start(NEWCOMER)
    endings.end_as_one(world, within=60.0)
    assert {node.member.log.register.number for node in world.nodes()} == {number}
    world.command(NAMES[1], lambda node, now: node.stop(now))
    assert world.node(NAMES[1]).has_parted, "nobody needs to let it go"


def test_who_waits_for_the_last_round_in_vain_comes_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has heard later than others that nobody is behind any more."""
    sound = ReplicaMember._behind.fget  # type: ignore[attr-defined]
    late = property(lambda self: [NAMES[2]] if self.me == NAMES[1] else sound(self))
    monkeypatch.setattr(ReplicaMember, "_behind", late)
    world, oracle = build(7, 4, WAN, Shape(start_members=4, last=6))
    endings.end_as_one(world, within=200.0)
    (result,) = oracle.results.values()
    assert {made.count for made in result.decision.means} == {4}


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_a_founder_that_does_not_train_leads_the_last_round_to_its_end(seed: int) -> None:
    """Its replica is that of the beginning, and yet it is not behind: the last round builds on none."""
    world, _ = build(seed, 4, WAN, Shape(start_members=3, last=endings.LAST, keepers=(NAMES[0],)))
    endings.end_as_one(world, within=200.0)
    assert {node.member.log.proposer for node in world.nodes()} == {NAMES[0]}


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_one_is_killed_near_the_end_and_all_who_are_there_have_one_model(seed: int) -> None:
    endings.killed_near_the_end(seed)


@pytest.mark.parametrize("seed", seeds(2, 100))
def test_two_parts_of_a_cut_run_that_have_ended_come_to_one_model(seed: int) -> None:
    endings.both_parts_end(seed)


def meet_knowing(sender: PeerId, ahead: int) -> Step[Replica]:
    """`sender` would meet, and knows so many entries more than the node."""
    return lambda node, now: node.receive(
        now, sender, Meet(node.standing + 1, 7, 0, False, node.member.log.register.number + ahead)
    )


@pytest.mark.parametrize(("ahead", "answer"), [(1, GetLog), (-1, Tip)])
def test_a_meet_shows_who_has_missed_an_entry(ahead: int, answer: type) -> None:
    world, _ = four_voters(6)
    sent: list[object] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and (peer, effect.to) == (NAMES[0], NAMES[1]):
            sent.append(effect.message)

    world.taps.append(tap)
    world.command(NAMES[0], meet_knowing(NAMES[1], ahead))
    assert [type(message) for message in sent if isinstance(message, GetLog | Tip)] == [answer]

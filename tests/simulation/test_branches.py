"""A run that can decide nothing any more goes on as a branch of its log, with those who are left."""

from __future__ import annotations

import random

import pytest

from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import check_signature
from shoal.protocol.log.anchors import anchor_of
from shoal.protocol.log.keeper import LOOK, SEEKING
from shoal.protocol.messages.averaging import Mean, MeanIs, Offer
from tests.simulation.branching import (
    CUTS,
    PATIENCE,
    ROUNDS,
    SETTLING,
    SOON,
    all_begin_another_life,
    back_without_some,
    become_one,
    boots_before_its_network,
    cut,
    holder_comes_later,
    last_to_stop,
    leaves_while_cut,
    newest,
    register,
    storm,
    swarm,
    wakes_and_finds_nobody,
    wakes_before_its_network,
    wakes_beside_one_who_waited,
)
from tests.simulation.campaign import build
from tests.simulation.disks import lose_the_state, lose_the_votes
from tests.simulation.links import LAN
from tests.simulation.seeds import seeds
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World


def go_on(world: World[Peer], peer: PeerId) -> None:
    world.node(peer).member.log.check_going_on()
    world.command(peer, lambda node, now: node.member.go_on(now))


def kill_the_needed(world: World[Peer]) -> list[PeerId]:
    """So many voters, the first ones first, that the others can decide nothing; those others."""
    voters = list(register(world).voters)
    while next(iter(world.nodes())).member.log.is_quorum(voters):
        world.kill(voters.pop(0))
    return voters


@pytest.mark.parametrize("seed", seeds(2, 20))
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


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_who_leaves_the_lesser_part_has_left_the_run_once_it_is_one_again(seed: int) -> None:
    print(f"\nseed {seed}: one run after {leaves_while_cut(seed):.1f} s")


@pytest.mark.parametrize("seed", seeds(2, 60))
@pytest.mark.parametrize(("peers", "bare"), [(2, 0), (3, 0), (3, 1), (5, 0), (5, 3)])
def test_all_stopped_in_order_and_the_last_to_stop_is_lost_for_good(seed: int, peers: int, bare: int) -> None:
    """Whoever had left before goes on where the log ends that any of them has, and holds the state of."""
    print(f"\nseed {seed}: one run {last_to_stop(seed, peers, bare):.0f} s after the start")


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_who_was_away_and_sees_nobody_decides_nothing_before_it_has_looked(seed: int) -> None:
    boots_before_its_network(seed)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_what_is_said_of_a_round_names_the_branch_on_which_it_is_said(seed: int) -> None:
    """Also of the round that was open when the branch began."""
    world, oracle = swarm(seed, 5)
    said: set[tuple[type, Digest]] = set()

    def look(peer: PeerId, effect: Effect) -> None:
        message, branch = effect.message if isinstance(effect, Send) else None, register(world, peer).branch
        if isinstance(message, Offer):
            assert message.branch == branch
            said.add((Offer, branch))
        elif isinstance(message, Mean) and message.made.owner == peer and message.round > world.node(peer).round:
            check_word(message, branch, world.node(peer)._base)
            said.add((Mean, branch))

    world.taps.append(look)
    left = kill_the_needed(world)
    world.run(30.0)
    before = newest(oracle)
    go_on(world, left[-1])
    world.run_until(lambda: all(node.round >= before + ROUNDS for node in world.nodes()), within=SOON)
    assert {(Offer, register(world).branch), (Mean, register(world).branch)} <= said
    assert not world.errors


def check_word(mean: Mean, branch: Digest, base: Base) -> None:
    """An owner's own mean is signed on this branch."""
    made = mean.made
    said = (branch, mean.part, mean.round, mean.chunk, made.epoch, base.root, made.hash)
    check_signature(MeanIs(*said, made.owner, made.life, made.signature), made.owner, FakeSigner(made.owner))


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_a_lone_voter_that_was_away_has_its_round_decided_as_soon_as_it_has_looked(seed: int) -> None:
    """What it averages meanwhile waits for nothing but the end of its look."""
    first, second = peers_named(2)
    world, oracle = build(seed, 2, LAN, Shape(start_members=2, keepers=(second,)))
    world.run_until(lambda: all(node.round >= 2 for node in world.nodes()), within=SOON)
    assert register(world).voters == (first,)
    for peer in (first, second):
        world.kill(peer)
    world.disks[first]["was_away"] = True  # type: ignore[assignment]
    world.start(first)
    world.run(LOOK / 2)
    assert world.node(first).member.log.core.looks
    standing = newest(oracle)
    world.start(second)
    world.run_until(lambda: newest(oracle) > standing, within=5.0)


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_who_has_slept_and_sees_nobody_decides_nothing_before_it_has_looked(seed: int) -> None:
    wakes_before_its_network(seed)


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_who_has_slept_and_is_left_alone_goes_on_after_it_has_looked(seed: int) -> None:
    wakes_and_finds_nobody(seed)


@pytest.mark.parametrize("seed", seeds(3, 60))
@pytest.mark.parametrize("sleepers", [1, 2])
def test_who_has_slept_beside_a_member_that_is_lost_holds_nobody_up(seed: int, sleepers: int) -> None:
    print(f"\nseed {seed}: rounds {wakes_beside_one_who_waited(seed, sleepers):.0f} s after they woke")


@pytest.mark.parametrize("seed", seeds(1, 60))
@pytest.mark.parametrize(("peers", "lost"), [(3, 1), (5, 2), (7, 3)])
def test_all_were_away_for_long_and_some_never_come_back(seed: int, peers: int, lost: int) -> None:
    """They look for those who are lost for a minute, and then find a view together."""
    print(f"\nseed {seed}: rounds {back_without_some(seed, peers, lost):.0f} s after the start")


@pytest.mark.parametrize("seed", seeds(1, 60))
@pytest.mark.parametrize("peers", [2, 3, 6])
def test_all_have_lost_their_votes_and_go_on_in_other_lives(seed: int, peers: int) -> None:
    print(f"\nseed {seed}: one run {all_begin_another_life(seed, peers):.0f} s after the start")


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_needed_voter_that_is_back_without_its_vote_is_said_to_be_missing(seed: int) -> None:
    """Both are there all the time, and the one that has its vote is no quorum: the run waits, and says for whom."""
    world, oracle = swarm(seed, 2, continue_after=PATIENCE)
    first, second = register(world).voters
    world.kill(first)
    for lose in (lose_the_votes, lambda disk: lose_the_state(disk, random.Random(seed))):
        lose(world.disks[first])
    world.start(first)
    world.run(0.5 * PATIENCE)
    for peer in (first, second):
        member = world.node(peer).member
        assert member.membership.alive()
        assert member.awaits_quorum
        assert member.awaited_voters == [first]
        assert 0.0 < (member.log.goes_on_in or 0.0) < PATIENCE
    become_one(world, oracle, [first, second], PATIENCE + SOON)
    assert not world.node(second).member.awaits_quorum


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_without_the_state_that_the_log_ends_with_nobody_goes_on(seed: int) -> None:
    holder_comes_later(seed)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_who_can_decide_founds_nothing(seed: int) -> None:
    world, _ = swarm(seed, 3)
    with pytest.raises(LocalError, match="can decide all by themselves"):
        go_on(world, peers_named(3)[1])


@pytest.mark.parametrize("seed", seeds(2, 20))
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


@pytest.mark.parametrize("seed", seeds(2, 20))
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


@pytest.mark.parametrize("seed", seeds(1, 40))
@pytest.mark.parametrize("parts", CUTS)
def test_a_cut_run_is_one_again_soon_after_it_is_whole(parts: str, seed: int) -> None:
    """Each part without a quorum goes on by itself; of the branches that with the most tokens is the run."""
    print(f"{parts}: one history {cut(seed, CUTS[parts]):.1f} s after the cut was mended")


@pytest.mark.parametrize("seed", seeds(2, 20))
@pytest.mark.parametrize("is_parent_left", [False, True])
def test_a_link_of_the_part_that_was_left_leads_to_the_run(seed: int, is_parent_left: bool) -> None:
    """It names an entry from past the fork, of a branch that nobody is on any more."""
    world, oracle = swarm(seed, 2 if is_parent_left else 3, continue_after=PATIENCE)
    first, *others = register(world).voters
    away, stays = (first, others) if is_parent_left else (others[-1], [first, *others[:-1]])
    world.network.partition(stays, [away])
    world.run(PATIENCE + SETTLING)
    left = register(world, away)
    if is_parent_left:  # which has gone on alone, and sleeps while the other does more
        world.pause(away)
        world.run(PATIENCE + SETTLING)
        world.resume(away)
    world.network.heal()
    become_one(world, oracle, [away, *stays], SOON)
    assert register(world).branch != left.branch
    newcomer = PeerId("p09")
    world.disks[newcomer] = {"anchor": anchor_of(left)}  # type: ignore[dict-item]
    world.start(newcomer)
    soon = SEEKING + SOON
    world.run_until(lambda: world.node(newcomer).member.log.is_member, within=soon)
    goal = newest(oracle) + ROUNDS
    world.run_until(lambda: world.node(newcomer).round >= goal, within=SOON)
    assert register(world, newcomer).branch == register(world).branch
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_who_has_come_over_from_another_branch_asks_for_no_state_while_it_applies_results(seed: int) -> None:
    """Whatever it hears of the others meanwhile."""
    world, oracle = swarm(seed, 3, continue_after=PATIENCE)
    names = peers_named(3)
    last = register(world).voters[-1]
    world.network.partition([name for name in names if name != last], [last])
    world.run(PATIENCE + SETTLING)
    world.network.heal()
    become_one(world, oracle, names, SOON)
    assert world.node(last).member.log.core.life > 1000
    assert len(register(world).earlier) == 0
    looks = list[float]()
    world.watchers.append(lambda _: looks.append(world.now) if world.node(last).member.transfer.active else None)
    goal = newest(oracle) + 10
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=2 * SOON)
    assert not looks


@pytest.mark.parametrize("seed", seeds(3, 600))
def test_cuts_within_cuts_deaths_stops_and_starts_leave_one_run(seed: int) -> None:
    print(f"\nseed {seed}: one run {storm(seed):.0f} s after peace")

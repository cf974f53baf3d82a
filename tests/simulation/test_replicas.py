"""Swarms of replicas: who meets whom, and that all go on."""

from __future__ import annotations

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.replicas.events import Lapse
from shoal.protocol.replicas.meeting import pairs
from tests.simulation.links import LAN, WAN, Link
from tests.simulation.replicas import Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.world import World


def all_at(world: World[Replica], round: int) -> bool:
    """Whether all of the living are at `round`, or beyond."""
    return all(node.standing >= round for node in world.nodes())


@pytest.mark.parametrize("link", [LAN, WAN])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_in_peace_all_meet_whom_the_seed_has_drawn(count: int, link: Link) -> None:
    world, oracle = build(1, count, link)
    world.run_until(lambda: all_at(world, 10), within=60.0)
    for round in range(1, 11):
        drawn = pairs(b"simulated", round, peers_named(count))
        assert oracle.partners(round) == {a: b for a, b in drawn} | {b: a for a, b in drawn}
    assert not oracle.lapses
    assert all(event.is_mutual for event in oracle.exchanged.values())
    assert not world.errors


def partners_of(world: World[Replica], name: PeerId) -> list[PeerId]:
    """The partners with which `name` has begun to exchange."""
    return [met.partner for met in world.node(name).met]


def test_of_an_odd_number_one_has_a_bye_and_nobody_waits_for_it() -> None:
    world, oracle = build(2, 5)
    world.run_until(lambda: all_at(world, 12), within=60.0)
    byes = [peer for (peer, _, round), reason in oracle.lapsed.items() if reason is Lapse.BYE and round <= 12]
    assert len(byes) == 12
    assert len(set(byes)) > 1
    assert set(oracle.lapsed.values()) == {Lapse.BYE}


def test_the_last_one_goes_on_alone() -> None:
    world, oracle = build(3, 2)
    world.run_until(lambda: all_at(world, 2), within=60.0)
    world.kill(peers_named(2)[1])
    world.run_until(lambda: all_at(world, 8), within=60.0)
    assert oracle.lapses[Lapse.ALONE] >= 4


def test_below_its_least_number_of_members_a_run_waits_and_says_so() -> None:
    shape = Shape(start_members=3, min_members=2)
    world, _ = build(4, 2, shape=shape, newcomers=1)
    world.run(20.0)
    assert not all_at(world, 1)
    assert all(node.waits == ["2 of at least 3 members are here"] for node in world.nodes())
    world.start(peers_named(3)[2])
    world.run_until(lambda: all_at(world, 3), within=60.0)
    for name in peers_named(3)[1:]:
        world.kill(name)
    world.run(60.0)
    alone = world.node(peers_named(3)[0])
    assert alone.waits[-1] == "1 of at least 2 members are here"
    assert alone.member.phase == "matching"


def test_two_who_lose_their_partners_find_each_other() -> None:
    """Both die while they are waited for; the two who are left meet in this very round."""
    names = peers_named(4)
    (a, b), (c, d) = pairs(b"simulated", 1, names)
    world, oracle = build(5, 4, WAN, Shape(start_members=2, slow=((b, 10.0), (d, 10.0))))
    world.run_until(lambda: {world.node(each).member.phase for each in (a, c)} == {"matching"}, within=10.0)
    world.kill(b)
    world.kill(d)
    world.run_until(lambda: all_at(world, 1), within=30.0)
    assert oracle.partners(1) == {a: c, c: a}


def test_who_loses_its_partner_in_the_middle_meets_another_and_counts_nothing_of_the_first() -> None:
    """The third has been waiting for one that is wedged; so it is there when the second has lost the first."""
    names = peers_named(4)
    (a, b), (c, d) = pairs(b"simulated", 1, names)
    shape = Shape(start_members=2, wedged=(d,), uplinks=((b, 1 << 19),))
    world, oracle = build(5, 4, WAN, shape)
    world.run_until(lambda: world.node(a).member.phase == "exchanging", within=10.0)
    world.run(5.0)
    round = world.node(a).member.exchanges.round
    assert round is not None
    exchange = round.exchange
    assert exchange is not None
    assert len(exchange.missing) < exchange.pairing.chunks, "it holds a part"
    world.kill(b)
    world.run_until(lambda: all(world.node(each).standing >= 1 for each in (a, c)), within=60.0)
    assert oracle.partners(1) == {a: c, c: a}


def test_who_does_not_come_is_urged_and_gone_on_without() -> None:
    names = peers_named(3)
    world, oracle = build(6, 3, shape=Shape(start_members=3, wedged=(names[2],)))
    world.run_until(lambda: all(world.node(name).standing >= 20 for name in names[:2]), within=500.0)
    assert world.node(names[2]).called
    assert any(event.partner == names[0] for event in oracle.exchanged.values())


def test_the_slow_hand_in_early_and_keep_their_partners() -> None:
    names = peers_named(4)
    world, oracle = build(7, 4, shape=Shape(start_members=4, slow=((names[3], 30.0),)))
    world.run_until(lambda: all_at(world, 20), within=400.0)
    assert world.now < 20 * 30 * 0.5 * 2.0, "faster than the slow one by itself"
    assert world.node(names[3]).called
    late = [round for (peer, _, round) in oracle.exchanged if peer == names[3] and 10 < round <= 20]
    assert len(late) >= 8


def test_a_keeper_is_nobodys_partner_and_stays_as_it_is() -> None:
    names = peers_named(3)
    world, oracle = build(8, 3, shape=Shape(keepers=(names[2],)))
    world.run_until(lambda: all(world.node(name).standing >= 6 for name in names[:2]), within=60.0)
    assert world.node(names[2]).standing == 0
    assert world.node(names[2]).member.phase == "keeping"
    assert names[2] not in {event.partner for event in oracle.exchanged.values()}
    assert not [reason for reason in oracle.lapsed.values() if reason is not Lapse.ALONE]


def test_many_are_cut_into_groups() -> None:
    world, oracle = build(9, 70)
    world.run_until(lambda: all_at(world, 1), within=60.0)
    found = oracle.partners(1)
    assert all(found[partner] == peer for peer, partner in found.items())
    assert len(found) >= 68


def test_on_slow_lines_nothing_is_sent_twice_and_who_is_done_waits_for_its_own_bytes_to_arrive() -> None:
    """One has everything long before its own vector has left; it must not go on, and its vector with it."""
    names = peers_named(2)
    world, oracle = build(10, 2, WAN, Shape(start_members=2, chunks=20, uplinks=((names[1], 1 << 19),)))
    world.run_until(lambda: all_at(world, 1), within=400.0)
    assert all(event.is_mutual for event in oracle.exchanged.values())
    assert 2 * 20 <= world.sent["Chunk"] <= 2 * 20 + 2
    assert world.now > 20 * 2.0, "each chunk has taken two seconds"


def test_the_same_seed_gives_the_same_trace() -> None:
    digests = set()
    for _ in range(2):
        world, _ = build(11, 6, WAN)
        world.run(20.0)
        digests.add(world.trace_digest())
    assert len(digests) == 1

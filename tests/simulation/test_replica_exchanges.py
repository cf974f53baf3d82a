"""Exchanges with a slow partner: it holds nobody for ever, and one that was always slow is waited for."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from shoal.protocol.replicas.pair import LEAST
from tests.simulation.links import WAN
from tests.simulation.replicas import Oracle, Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.uplink import PAYLOAD
from tests.simulation.world import World

A, B = peers_named(2)
CHUNKS = 40
FAST, SLOW = 0.01, 12.0  # seconds for each payload
IN_ALL = CHUNKS * SLOW


def throttle(world: World[Replica], peer: PeerId, seconds: float) -> None:
    """From its next payload on, those of `peer` take so long each."""
    uplink = world._processes[peer].uplink
    assert uplink is not None
    uplink.rate = PAYLOAD / seconds


def in_an_exchange(seed: int, *, slow: PeerId) -> tuple[World[Replica], Oracle]:
    """Two that have exchanged quickly, and do again; but now `slow` crawls."""
    shape = Shape(start_members=2, chunks=CHUNKS, uplinks=tuple((name, PAYLOAD / FAST) for name in (A, B)))
    world, oracle = build(seed, 2, WAN, shape)
    world.run_until(lambda: all(node.standing >= 6 for node in world.nodes()), within=100.0)
    throttle(world, slow, SLOW)
    world.run_until(lambda: all(node.member.phase == "exchanging" for node in world.nodes()), within=30.0)
    return world, oracle


def test_who_sends_slowly_holds_nobody_for_ever_and_counts_for_nothing() -> None:
    world, oracle = in_an_exchange(1, slow=B)
    round = world.node(A).standing + 1
    world.run_until(lambda: world.node(A).standing >= round, within=0.8 * IN_ALL)
    assert A not in oracle.partners(round)


def test_who_reads_slowly_holds_nobody_for_ever_and_its_own_bytes_count_on_one_side() -> None:
    """To the one who sends it is the same as a slow way out."""
    world, oracle = in_an_exchange(2, slow=A)
    round = world.node(A).standing + 1
    world.run_until(lambda: world.node(A).standing >= round, within=0.8 * IN_ALL)
    assert oracle.partners(round).get(A) == B
    assert not oracle.exchanged[A, 0, round].is_mutual
    world.run_until(lambda: world.node(B).standing >= round, within=60.0)
    assert oracle.count_one_sided() == 1


def test_who_reads_no_more_and_answers_every_word_holds_nobody() -> None:
    world, oracle = in_an_exchange(5, slow=A)
    throttle(world, A, 1e9)
    round = world.node(B).member.exchanges.round
    assert round is not None
    assert round.exchange is not None
    round.exchange.tick = lambda now: []  # type: ignore[method-assign]
    number = world.node(A).standing + 1
    world.run_until(lambda: world.node(A).standing >= number, within=0.8 * IN_ALL)
    assert not oracle.exchanged[A, 0, number].is_mutual


def test_who_has_become_slow_is_given_more_time_after_a_while() -> None:
    world, oracle = in_an_exchange(3, slow=B)
    before = world.node(A).standing
    world.run_until(lambda: any(round > before for (_, _, round) in oracle.exchanged), within=20 * IN_ALL)
    throttle(world, B, FAST)
    length = world.node(A).member.exchanges._means.length
    assert length.deadline() > LEAST
    world.run_until(lambda: length.deadline() == LEAST, within=20 * IN_ALL)


def test_who_was_always_slow_is_waited_for_from_the_first_round_on() -> None:
    shape = Shape(start_members=2, chunks=CHUNKS, uplinks=((B, PAYLOAD / SLOW),))
    world, oracle = build(4, 2, WAN, shape)
    world.run_until(lambda: all(node.standing >= 3 for node in world.nodes()), within=4 * IN_ALL)
    assert not oracle.lapses
    assert oracle.count_one_sided() == 0

"""Rounds over slow and unequal uplinks: what moves is waited for, what stands still is not, nothing is sent twice."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.shares import FASTEST, Claim, Load, share
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import masked
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.slow_links import MBIT, HomeWorld, home_swarm, run_to, unequal
from tests.simulation.swarm import TRAINING
from tests.simulation.uplink import PAYLOAD

HOUR = 3600.0  # virtual
CHUNKS = 16


def assert_at_once(world: HomeWorld, oracle: Oracle, round: int) -> None:
    assert round in oracle.decisions
    assert oracle.voided == set()
    assert world.errors == []


def assert_smooth(world: HomeWorld, oracle: Oracle, round: int) -> None:
    """With everybody's contribution, and each payload once."""
    assert_at_once(world, oracle, round)
    assert left_out(oracle, round) == set()
    assert world.again(round) == {"contributions": 0, "means": 0}


def left_out(oracle: Oracle, round: int) -> set[PeerId]:
    """Members that are missing in some chunk."""
    decision = oracle.decisions[round]
    return {peer for made in decision.means for peer in set(decision.roster) - set(masked(decision.roster, made.mask))}


def wait_for_group(world: HomeWorld, share: float = 0.3) -> Exchange:
    """Run until some member has this share of a round's means, but not all."""

    def at_work() -> list[Exchange]:
        rounds = [node.member.rounds.round for node in world.nodes() if node.phase() in ("scatter", "gather")]
        exchanges = [each.exchange for each in rounds if each is not None]
        return [each for each in exchanges if sum(map(bool, each.means)) >= share * CHUNKS]

    world.run_until(lambda: bool(at_work()), within=HOUR)
    return at_work()[0]


def proposer(world: HomeWorld) -> PeerId:
    """Whose turn it is."""
    return next(iter(world.nodes())).member.log.proposer


@pytest.mark.parametrize("slowest", [5.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_one_peer_twenty_times_slower_than_the_others(slowest: float) -> None:
    rates = [20 * slowest * MBIT] * 4 + [slowest * MBIT]
    world, oracle = home_swarm(7, rates, CHUNKS)
    run_to(world, 2, HOUR)
    for round in (1, 2):
        assert_smooth(world, oracle, round)


def test_a_round_of_many_minutes() -> None:
    world, oracle = home_swarm(3, [MBIT] * 4, 32)
    assert run_to(world, 1, HOUR) > 300
    assert_smooth(world, oracle, 1)


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_unequal_links(seed: int) -> None:
    world, oracle = home_swarm(seed, unequal(seed), CHUNKS)
    run_to(world, 2, HOUR)
    for round in (1, 2):
        assert_smooth(world, oracle, round)


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_unequal_links_that_are_known_take_as_long_as_they_must(seed: int) -> None:
    rates = unequal(seed)
    world, oracle = home_swarm(seed, rates, CHUNKS, measured=True)
    took = run_to(world, 1, HOUR), run_to(world, 2, HOUR)
    for round in (1, 2):
        assert_smooth(world, oracle, round)
    counts = share([Claim(int(rate), FASTEST) for rate in rates], Load(CHUNKS), len(rates))
    optimum = max(
        (CHUNKS + (len(rates) - 2) * count) * PAYLOAD / rate for count, rate in zip(counts, rates, strict=True)
    )
    assert max(took) < 1.1 * optimum + TRAINING


@pytest.mark.slow
def test_a_payload_may_take_twenty_seconds() -> None:
    world, oracle = home_swarm(8, [13 * MBIT, 0.45 * MBIT, 27 * MBIT, 47 * MBIT], CHUNKS)
    run_to(world, 2, HOUR)
    for round in (1, 2):
        assert_smooth(world, oracle, round)


def test_who_still_lacks_bytes_when_it_is_to_vote_says_so() -> None:
    """The proposer's own means are the last to come, over its slow uplink, when it has asked for votes long ago."""
    world, oracle = home_swarm(25, [2.8 * MBIT, 20 * MBIT, 28 * MBIT, 29 * MBIT], 2 * CHUNKS)
    run_to(world, 1, HOUR)
    assert_smooth(world, oracle, 1)


@pytest.mark.parametrize(
    "seed", [22, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, *range(4, 34)) if seed != 22)]
)
def test_many_unequal_links(seed: int) -> None:
    world, oracle = home_swarm(seed, unequal(seed), 2 * CHUNKS)
    run_to(world, 2, 4 * HOUR)
    for round in (1, 2):
        assert_smooth(world, oracle, round)


@pytest.mark.parametrize("unnoticed", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("role", ["proposer", "owner", "slowest"])
def test_a_death_during_a_slow_transfer(role: str, unnoticed: float) -> None:
    world, oracle = home_swarm(5, [10 * MBIT] * 4 + [2 * MBIT], CHUNKS, unnoticed)
    run_to(world, 1, HOUR)
    exchange, first, slowest = wait_for_group(world), proposer(world), PeerId("p04")
    owner = next(peer for peer in exchange.owners() if peer not in (first, slowest))
    victim = {"proposer": first, "slowest": slowest, "owner": owner}[role]
    share = exchange.owners().count(victim)
    world.kill(victim)
    run_to(world, 2, HOUR)
    assert_at_once(world, oracle, 2)
    assert max(world.resent(peer, 2) for peer in world.living()) <= share
    assert left_out(oracle, 2) <= {victim}


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.001 * MBIT, marks=pytest.mark.slow)])
def test_a_member_that_sends_no_more_is_given_up(rate: float) -> None:
    world, oracle = home_swarm(11, [10 * MBIT] * 5, CHUNKS)
    run_to(world, 1, HOUR)
    exchange = wait_for_group(world, share=0.05)
    victim = next(peer for peer in exchange.roster if peer != proposer(world))
    world.throttle(victim, rate)
    world.run_until(lambda: 2 in oracle.decisions, within=HOUR / 6)
    assert_at_once(world, oracle, 2)
    assert left_out(oracle, 2) == {victim}


@pytest.mark.parametrize("rate", [10.0, 1000.0])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_path_that_swallows_payloads_costs_one_contribution(seed: int, rate: float) -> None:
    world, oracle = home_swarm(seed, [rate * MBIT] * 5, CHUNKS)
    run_to(world, 1, HOUR)
    round = world.node(PeerId("p00")).round + 1
    sender, receiver = PeerId(f"p0{1 + seed}"), PeerId(f"p0{(2 + seed) % 5}")
    world.black_holes.add((sender, receiver))
    world.run_until(lambda: round in oracle.decisions, within=HOUR / 6)
    assert_at_once(world, oracle, round)
    assert left_out(oracle, round) <= {sender}


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize(("seed", "place"), [(0, 0), (0, 1), (2, 2)])
def test_who_trains_alone_is_asked_again_though_it_was_given_up(seed: int, place: int, share: float) -> None:
    """Its payloads are gone with its connections, and it sends none again unless it is asked.

    Also if a share of the round's means was there before.
    """
    keepers = [other for other in range(3) if other != place]
    world, oracle = home_swarm(seed, [10 * MBIT] * 3, CHUNKS, keepers=keepers)
    run_to(world, 4, HOUR)
    names = list(world.disks)
    if share:
        wait_for_group(world, share)
    trainer, others = names[place], [names[other] for other in keepers]
    world.throttle(trainer, PAYLOAD / 300)
    world.run_until(lambda: all(trainer in losses(world, peer) for peer in others), within=HOUR)
    stuck = oracle.newest
    world.throttle(trainer, 10 * MBIT)
    for peer in others:
        world.reset_link(trainer, peer)
    run_to(world, stuck + 2, 600.0)
    assert_at_once(world, oracle, stuck + 1)


def losses(world: HomeWorld, peer: PeerId) -> list[PeerId]:
    """Whom `peer` has lost, or given up, in the round that it is in."""
    round = world.node(peer).member.rounds.round
    return list(round.exchange.lost) if round is not None else []

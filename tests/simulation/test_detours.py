"""Members between whom payloads take a slow relay: none owns a chunk as long as somebody needs no relay."""

from __future__ import annotations

from itertools import combinations

import pytest

from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Contribution
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.slow_links import HOME, MBIT, HomeWorld, run_to
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.test_slow_links import CHUNKS, HOUR, assert_at_once, assert_smooth

NAMES = peers_named(5)
SYMMETRIC = NAMES[4]
WITH_SYMMETRIC = ((NAMES[2], SYMMETRIC), (NAMES[3], SYMMETRIC))  # two at home, and one whom they cannot meet
RELAY = MBIT  # ten times slower than a home's line


def swarm(seed: int, apart: tuple[tuple[PeerId, PeerId], ...], names: list[PeerId] = NAMES) -> tuple[HomeWorld, Oracle]:
    """A swarm on equal lines."""
    oracle = Oracle()
    shape = Shape(chunks=CHUNKS, start_members=len(names), apart=apart)
    world = HomeWorld(lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape), seed, HOME)
    world.taps.append(oracle.saw)
    for pair in apart:
        world.network.set_detour(*pair, RELAY)
    for name in names:
        world.network.set_uplink(name, 10 * MBIT)
        world.start(name)
    return world, oracle


def run_to_next(world: HomeWorld, oracle: Oracle) -> int:
    """Run until all hold the newest round; the number of the next."""
    run_to(world, oracle.newest + 1, HOUR)
    return oracle.newest + 1


def exchange_of(world: HomeWorld, round: int = 1) -> Exchange:
    """Some member's exchange in a round; runs until there is one that has received something."""

    def there() -> list[Exchange]:
        rounds = (node.member.rounds.round for node in world.nodes())
        return [
            each.exchange for each in rounds if each is not None and each.number == round and any(each.exchange.means)
        ]

    world.run_until(lambda: bool(there()), within=HOUR)
    return there()[0]


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_whoever_is_apart_from_somebody_owns_nothing(seed: int) -> None:
    world, oracle = swarm(seed, WITH_SYMMETRIC)
    assert sorted(set(exchange_of(world).owners())) == NAMES[:2]
    run_to(world, 3, HOUR)
    for round in (1, 2, 3):
        assert_smooth(world, oracle, round)
    assert world.network.relayed == 0


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_the_chunks_of_dead_owners_go_to_no_such_member_either(seed: int) -> None:
    """When those are dead whom all can reach, to those whom most can."""
    world, oracle = swarm(seed, WITH_SYMMETRIC)
    owners: set[PeerId] = set()
    world.taps.append(lambda peer, effect: owners.update(_owner(effect)))
    for number, victim in enumerate(NAMES[:2]):
        round = run_to_next(world, oracle)
        exchange_of(world, round)
        world.kill(victim)
        run_to(world, round, HOUR)
        assert_at_once(world, oracle, round)
        assert (world.network.relayed > 0) == (number == 1)
    assert owners == set(NAMES) - {SYMMETRIC}


def _owner(effect: Effect) -> list[PeerId]:
    return [effect.to] if isinstance(effect, Send) and isinstance(effect.message, Contribution) else []


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_where_nobody_reaches_all_those_own_who_reach_most(seed: int) -> None:
    """Two at home, and two behind symmetric routers, each of whom is apart from all but itself."""
    home, symmetric = NAMES[:2], NAMES[2:4]
    apart = tuple((one, other) for one, other in combinations(NAMES[:4], 2) if other in symmetric)
    world, oracle = swarm(seed, apart, NAMES[:4])
    assert sorted(set(exchange_of(world).owners())) == home
    run_to(world, 2, HOUR)
    assert_at_once(world, oracle, 2)
    assert world.network.relayed > 0


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_swarm_in_which_all_need_relays_goes_on_all_the_same(seed: int) -> None:
    names = NAMES[:3]
    world, oracle = swarm(seed, tuple(combinations(names, 2)), names)
    assert sorted(set(exchange_of(world).owners())) == names
    run_to(world, 3, HOUR)
    for round in (1, 2, 3):
        assert_at_once(world, oracle, round)
    assert world.network.relayed >= 3 * CHUNKS

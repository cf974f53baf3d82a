"""Joiners, and those who were left behind: each copies one signed replica, whole, whoever lies or dies."""

from __future__ import annotations

import pytest

from shoal.protocol.effects import Effect, Send
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.replicas.events import Exchanged
from tests.simulation.links import WAN
from tests.simulation.replicas import Oracle, Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.world import World

NAMES = peers_named(5)
LATE = NAMES[4]


def swarm(seed: int, window: int = 8) -> tuple[World[Replica], Oracle]:
    """Four members at round 4 or so, and a fifth that is about to join."""
    shape = Shape(start_members=4, joiners=(LATE,), window=window)
    world, oracle = build(seed, 4, WAN, shape, newcomers=1)
    world.run_until(lambda: all(node.standing >= 4 for node in world.nodes()), within=60.0)
    return world, oracle


def takes_part(oracle: Oracle, peer: PeerId) -> bool:
    """Whether others have met it."""
    return any(event.partner == peer for event in oracle.exchanged.values())


def test_a_joiner_copies_one_replica_and_takes_part() -> None:
    world, oracle = swarm(1)
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=60.0)
    ((peer, copy),) = oracle.copies
    assert peer == LATE
    assert copy.donor in NAMES[:4]
    assert copy.round >= 4
    assert not world.errors


def test_one_that_was_away_for_long_copies_and_one_that_was_for_a_moment_goes_on() -> None:
    for pause, copies in ((6.0, 0), (60.0, 1)):
        world, oracle = swarm(2, window=6)
        away = NAMES[2]
        world.pause(away)
        world.run(pause)
        world.resume(away)
        before = world.node(away).standing
        world.run(20.0)
        newest = max(node.standing for node in world.nodes())
        assert world.node(away).standing >= newest - 2 > before
        assert len(oracle.copies) == copies
        assert any(isinstance(told, Exchanged) and told.round > newest - 4 for told in _of(oracle, away))


def _of(oracle: Oracle, peer: PeerId) -> list[Exchanged]:
    return [event for (who, _, _), event in oracle.exchanged.items() if who == peer]


@pytest.mark.parametrize("lies", [True, False])
def test_a_donor_that_lies_is_named_and_one_that_dies_replaced(lies: bool) -> None:
    world, oracle = swarm(3)
    donors: list[PeerId] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if not donors and isinstance(effect, Send) and isinstance(effect.message, StateChunk):
            donors.append(peer)
            if lies:
                _lie(world.node(peer))
            else:
                world.kill(peer)

    world.taps.append(tap)
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=120.0)
    assert [each.peer for each in world.node(LATE).blamed] == (donors if lies else [])
    assert [copy.donor == donors[0] for _, copy in oracle.copies] == [False]


def _lie(node: Replica) -> None:
    """From now on every chunk of the replica that `node` serves is wrong."""
    store = node.store
    store.chunk = lambda round, index: b"a lie"  # type: ignore[method-assign]


def test_without_a_donor_a_joiner_waits_and_one_that_comes_later_is_found() -> None:
    world, oracle = build(4, 1, WAN, Shape(joiners=(NAMES[0],)), newcomers=1)
    world.run(30.0)
    assert world.node(NAMES[0]).member.phase == "syncing"
    world.start(NAMES[1])
    world.run_until(lambda: takes_part(oracle, NAMES[0]), within=60.0)
    assert len(oracle.copies) == 1


def test_a_lease_pins_what_is_copied_while_rounds_go_on() -> None:
    """Lines are slow; the donor is further when the last chunk comes, and has kept the version until then."""
    lines = tuple((name, 1 << 18) for name in NAMES[:4])  # four seconds for each payload
    world, oracle = build(5, 4, WAN, Shape(chunks=1, start_members=4, joiners=(LATE,), uplinks=lines), newcomers=1)
    world.run_until(lambda: all(node.standing >= 2 for node in world.nodes()), within=100.0)
    world.start(LATE)
    world.run_until(lambda: bool(oracle.copies), within=300.0)
    ((_, copy),) = oracle.copies
    donor = world.node(copy.donor)
    assert donor.standing > copy.round
    assert list(donor.store.pinned) == [copy.round]
    world.run(60.0)
    assert list(donor.store.pinned) == [], "the lease is over"
    world.run_until(lambda: takes_part(oracle, LATE), within=100.0)

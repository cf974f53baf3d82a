"""Members that keep state and do not train: they vote if that is ordered, and commit nothing in a trainer's place."""

from __future__ import annotations

import pytest

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

TRAINER, *KEEPERS = peers_named(4)
SOON = 30.0  # virtual seconds


def together(rounds: int) -> tuple[World[Peer], Oracle]:
    """The founder, who trains, and three keepers, after a few rounds."""
    shape = Shape(start_members=4, keepers=tuple(KEEPERS), unreachable=(TRAINER,))
    world, oracle = build(1, 4, LAN, shape)
    world.run_until(lambda: oracle.newest >= rounds, within=SOON)
    return world, oracle


def promote(world: World[Peer], by: PeerId, member: PeerId) -> None:
    world.command(by, lambda node, now: node.member.promote(now, member))


def voters(world: World[Peer]) -> set[PeerId]:
    return set(world.node(TRAINER).member.log.register.voters)


def test_a_member_that_does_not_train_votes_once_the_author_orders_it() -> None:
    world, _ = together(rounds=3)
    assert voters(world) == {TRAINER}
    promote(world, TRAINER, KEEPERS[0])
    world.run_until(lambda: voters(world) == {TRAINER, KEEPERS[0]}, within=SOON)
    with pytest.raises(LocalError, match="has a vote already"):
        world.node(TRAINER).member.log.check_promotion(KEEPERS[0])
    with pytest.raises(LocalError, match="its stewards and its voters"):
        world.node(KEEPERS[2]).member.log.check_promotion(KEEPERS[1])
    with pytest.raises(LocalError, match="no member of the run"):
        world.node(TRAINER).member.log.check_promotion(PeerId("stranger"))


def test_a_voter_that_is_not_the_author_needs_a_quorum() -> None:
    world, oracle = together(rounds=1)
    for keeper in KEEPERS[:2]:
        promote(world, TRAINER, keeper)
    world.run_until(lambda: len(voters(world)) == 3, within=SOON)
    promote(world, KEEPERS[0], KEEPERS[2])
    seen = oracle.newest
    world.run_until(lambda: oracle.newest >= seen + 3, within=SOON)
    assert KEEPERS[2] not in voters(world)
    promote(world, KEEPERS[1], KEEPERS[2])
    world.run_until(lambda: KEEPERS[2] in voters(world), within=SOON)


def test_the_mean_of_nothing_is_never_committed() -> None:
    """The keepers are a quorum without the trainer, but have nothing to average."""
    world, oracle = together(rounds=1)
    for keeper in KEEPERS:
        promote(world, TRAINER, keeper)
    world.run_until(lambda: len(voters(world)) == 4, within=SOON)
    decided: list[int] = []

    def kill(peer: PeerId) -> None:
        ready = any(world.node(keeper).phase() != "training" for keeper in KEEPERS)
        if ready and not decided and world.node(TRAINER).phase() == "training":
            world.kill(TRAINER)  # it sent nothing yet
            decided.append(oracle.newest)

    world.watchers.append(kill)
    world.run(60.0)
    assert decided == [oracle.newest]

"""A member whose process stops in the middle of a round, with its connections open: it is found out soon."""

from __future__ import annotations

import pytest

from shoal.protocol.base.ids import PeerId
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.seeds import seeds

SOON = 3.5  # seconds: of silence, of a check, and of what is left of the round
LONG = 120.0


@pytest.mark.parametrize("phase", ["scatter", "gather"])
@pytest.mark.parametrize("role", ["owner", "proposer"])
@pytest.mark.parametrize("seed", seeds(1, 6))
def test_a_round_is_decided_soon_without_an_owner_that_has_stopped(seed: int, role: str, phase: str) -> None:
    world, oracle = build(seed, 4, LAN)
    world.run_until(lambda: all(len(node.member.log.register.voters) == 4 for node in world.nodes()), within=LONG)
    world.run_until(lambda: oracle.newest >= 4, within=LONG)
    stopped: list[tuple[PeerId, int, float]] = []

    def stop(peer: PeerId) -> None:
        node = world.node(peer)
        if not stopped and (node.role(), node.phase()) == (role, phase):
            stopped.append((peer, node.round + 1, world.now))
            world.pause(peer)

    world.watchers.append(stop)
    world.run_until(lambda: bool(stopped), within=LONG)
    ((victim, round, at),) = stopped
    others = [node for node in world.nodes() if node.me != victim]
    world.run_until(lambda: all(node.round >= round for node in others), within=LONG)
    print(f"\nseed {seed}: {role}, {phase}: round {round} {world.now - at:.2f} s after the stop")
    assert world.now - at <= SOON
    assert not world.errors

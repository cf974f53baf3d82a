"""Members that keep state and vote but do not train: when the only trainer dies, nothing is committed in its place."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.swarm import Shape, peers_named

TRAINER, *KEEPERS = peers_named(4)


def test_the_mean_of_nothing_is_never_committed() -> None:
    """The keepers are a quorum without the trainer, but have nothing to average."""
    shape = Shape(start_members=4, keepers=tuple(KEEPERS), unreachable=(TRAINER,))
    world, oracle = build(1, 4, LAN, shape)
    decided: list[int] = []

    def kill(peer: PeerId) -> None:
        ready = any(world.node(keeper).phase() != "training" for keeper in KEEPERS)
        if ready and oracle.newest and world.is_alive(TRAINER) and world.node(TRAINER).phase() == "training":
            world.kill(TRAINER)  # it sent nothing yet
            decided.append(oracle.newest)

    world.watchers.append(kill)
    world.run(60.0)
    assert decided == [oracle.newest]
    assert oracle.newest >= 1

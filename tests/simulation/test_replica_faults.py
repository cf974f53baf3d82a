"""Swarms of replicas under seeded faults: complete or nothing, once, of the right round; and nobody is stuck."""

from __future__ import annotations

import random
from functools import partial

import pytest

from shoal.protocol.base.ids import PeerId
from tests.simulation.faults import FaultPlan
from tests.simulation.links import LAN, WAN, Link
from tests.simulation.replicas import Oracle, Replica, Shape, build
from tests.simulation.seeds import seeds
from tests.simulation.swarm import peers_named
from tests.simulation.world import World

KINDS = ("kill", "pause", "partition", "cut", "loss", "accuse", "blip")
PHASES = ("training", "matching", "exchanging", "applying", "syncing")
TROUBLE = 20.0  # virtual seconds in which faults strike
PATIENT = 60.0  # virtual seconds in which each must come on by a round, in peace


def run_seed(seed: int) -> tuple[World[Replica], Oracle] | None:
    """A swarm, faults drawn from the seed, then peace, in which all must go on; None if nobody left can."""
    rng = random.Random(f"replicas {seed}")
    count = rng.choice((2, 3, 3, 4, 5, 6, 7, 8, 12))
    link = rng.choice((LAN, WAN, Link(0.05, 0.1, loss=0.05, duplicate=0.1)))
    newcomers = rng.choice((0, 1, 2))
    names = peers_named(count + newcomers)
    shape = Shape(
        chunks=rng.choice((1, 4, 9)),
        start_members=rng.choice((1, count)),
        joiners=tuple(names[count:]),
        slow=((names[1], rng.choice((1.0, 3.0))),),
        window=rng.choice((3, 8)),
    )
    world, oracle = build(seed, count, link, shape, unnoticed=rng.choice((0.0, 0.5)), newcomers=newcomers)
    plan = FaultPlan.draw(
        rng, names[:count], count=rng.randint(1, 8), horizon=TROUBLE, kinds=KINDS, phases=PHASES, forever=0.3
    )
    plan.arm(world)
    for name in names[count:]:
        world.at(rng.uniform(0.0, TROUBLE), partial(world.start, name))
    world.run(TROUBLE + 10.0)
    world.network.heal()
    world.network.set_loss(None)
    if excuse(world, shape):
        return None
    world.run_until(lambda: all(node.standing >= 0 for node in world.nodes()), within=120.0)
    for _ in range(3):
        world.run_until(partial(_have_come_on, world, {node.me: node.standing for node in counted(world)}), PATIENT)
    assert not world.errors
    return world, oracle


def excuse(world: World[Replica], shape: Shape) -> str:
    """Why those who live cannot go on; empty: they must."""
    members = [node for node in world.nodes() if node.me in node.members()]
    if all(node.standing < 0 for node in members):
        return "no member has a replica"
    has_begun = all(node.standing > 0 for node in members)
    if not has_begun and not _is_open(world) and len(members) < shape.start_members:
        return "the founder is gone before enough were there to begin"
    return ""


def _is_open(world: World[Replica]) -> bool:
    """Whether those live who can admit somebody."""
    log = max((node.member.log for node in world.nodes()), key=lambda log: log.register.number)
    return log.is_quorum(world.living())


def _have_come_on(world: World[Replica], before: dict[PeerId, int]) -> bool:
    """Whether all have; who has been started again meanwhile, counts from then on."""
    return all(node.standing > before.setdefault(node.me, node.standing) for node in counted(world))


def counted(world: World[Replica]) -> list[Replica]:
    """Who must go on: the members; and newcomers as well, if those who could admit them are alive."""
    is_open = _is_open(world)
    return [node for node in world.nodes() if is_open or node.me in node.members()]


@pytest.mark.parametrize("seed", seeds(2, 10))
def test_faults_are_survived(seed: int) -> None:
    outcome = run_seed(seed)
    if outcome is None or len(outcome[0].living()) < 2:
        return
    world, oracle = outcome
    living = world.living()
    newest = max(node.standing for node in world.nodes())
    assert min(node.standing for node in counted(world)) >= newest - 8, "somebody was left behind"
    late = [event for (peer, _, round), event in oracle.exchanged.items() if round > newest - 4 and peer in living]
    assert late, "they exchange again"

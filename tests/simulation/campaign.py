"""Seeded campaigns: a swarm, misfortune drawn from the seed, then peace, in which everybody must come together."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from shoal.protocol.ids import PeerId
from shoal.protocol.quorum import is_quorum
from tests.simulation.faults import FaultPlan
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

PHASES = ("scatter", "gather", "prepare", "commit")
KINDS = ("kill", "pause", "partition", "cut", "loss", "accuse", "blip")
TROUBLE = 25.0  # virtual seconds in which faults strike
PEACE = 240.0  # virtual seconds within which all must come together again
MORE_ROUNDS = 2  # that must commit in peace


@dataclass
class Report:
    """What one seed did."""

    seed: int
    peers: int
    rounds: int = 0
    begun: int = 0
    aborts: list[tuple[int, int, str]] = field(default_factory=list)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    trace: str = ""
    peace_took: float = 0.0


def swarm_size(rng: random.Random) -> int:
    """3 to 32 peers; small swarms more often, where each loss hurts more."""
    return rng.choice((3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12, 16, 24, 32))


def build(
    seed: int, peers: int, link: Link, shape: Shape | None = None, unnoticed: float = 0.0
) -> tuple[World[Peer], Oracle]:
    """A world with a swarm in it, not started yet."""
    names = peers_named(peers)
    oracle = Oracle(names[0])
    shape = shape or Shape(start_members=peers)
    world = World(lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape), seed, link, unnoticed=unnoticed)
    for name in names:
        world.start(name)
    return world, oracle


def run_seed(seed: int) -> Report:
    """One campaign: Violation, with the seed in its notes, if a promise is broken."""
    rng = random.Random(f"campaign {seed}")
    count = swarm_size(rng)
    link = Link(
        delay=rng.choice((0.0005, 0.02, 0.08)),
        jitter=rng.choice((0.002, 0.03, 0.15)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
        duplicate=rng.choice((0.0, 0.02)),
    )
    world, oracle = build(seed, count, link, unnoticed=rng.choice((0.0, 0.5)))
    plan = FaultPlan.draw(
        rng, peers_named(count), count=rng.randint(1, 6), horizon=TROUBLE, kinds=KINDS, phases=PHASES, forever=0.2
    )
    plan.arm(world)
    report = Report(seed, count)
    try:
        world.run(TROUBLE + 10.0)
        report.peace_took = make_peace(world, oracle)
    except Violation as violation:
        violation.add_note(f"seed {seed}; {plan}")
        raise
    report.rounds, report.faults, report.trace = oracle.newest, world.faults, world.trace_digest()
    report.begun, report.aborts = oracle.newest + 1, oracle.aborts
    return report


def make_peace(world: World[Peer], oracle: Oracle) -> float:
    """No more faults: everyone who lives must commit again, on the same state. Violation if they do not."""
    world.network.heal()
    world.network.set_loss(None)
    for peer in world.living():
        world.resume(peer)
    if not has_quorum(world, oracle):
        return 0.0  # the run waits, and says so; it may never go on by itself
    goal = oracle.newest + MORE_ROUNDS

    def together() -> bool:
        return all(
            peer in oracle.members_at[goal] or world.node(peer).store.versions()[-1] > goal for peer in world.living()
        )

    try:
        return world.run_until(together, within=PEACE)
    except AssertionError:
        where = {peer: (world.node(peer).store.versions()[-1], world.node(peer).phase()) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not everywhere {PEACE} s after peace: {where}") from None


def has_quorum(world: World[Peer], oracle: Oracle) -> bool:
    """Whether the voters of the newest round that live are a quorum, and enough."""
    living: list[PeerId] = world.living()
    return is_quorum(living, oracle.voters[oracle.newest]) and len(living) >= (2 if oracle.newest else 99)

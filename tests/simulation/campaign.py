"""Seeded campaigns: a swarm, faults drawn from the seed, then peace, in which all must commit together again."""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace

from tests.simulation.churn import Churn, draw_apart, draw_shape
from tests.simulation.faults import During, Fault, FaultPlan
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle
from tests.simulation.peace import Peace, make_peace
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

PHASES = ("scatter", "gather", "prepare", "commit")
KINDS = ("kill", "pause", "partition", "cut", "loss", "accuse", "blip")
SIZES = (2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 10, 12, 16, 24, 32)  # small ones: each loss hurts more
TROUBLE = 15.0  # virtual seconds in which faults strike


@dataclass
class Report:
    """The outcome of one seed."""

    seed: int
    peers: int
    shape: Shape = field(default_factory=Shape)
    rounds: int = 0  # decided
    begun: int = 0  # for which a group was formed
    at_once: int = 0  # decided in the first attempt
    waited: bool = False  # for enough members, at least once
    peace: Peace = field(default_factory=Peace)
    aborts: list[tuple[int, int, str]] = field(default_factory=list)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    trace: str = ""
    failure: str = ""


def build(
    seed: int, peers: int, link: Link, shape: Shape | None = None, unnoticed: float = 0.0, newcomers: int = 0
) -> tuple[World[Peer], Oracle]:
    """A world with a swarm in it, just started; `newcomers` have a name but no process yet."""
    names = peers_named(peers + newcomers)
    shape = shape or Shape(start_members=peers)
    oracle = Oracle(names[0])
    seeds = names[:peers]
    world = World(lambda me, now, disk, rng: Peer(me, seeds, disk, rng, oracle, shape), seed, link, unnoticed=unnoticed)
    world.taps.append(oracle.saw)
    world.post.unreachable.extend(shape.unreachable)
    for name in seeds:
        world.start(name)
    return world, oracle


def run_seed(seed: int, sizes: tuple[int, ...] = SIZES, cycle: tuple[int, ...] = ()) -> Report:
    """One campaign: Violation, with the seed and its fault plan in its notes, if a promise is broken.

    With a `cycle`, the same faults strike rounds of so many chunks in turn.
    """
    rng = random.Random(f"campaign {seed}")
    count = rng.choice(sizes)
    link = Link(
        delay=rng.choice((0.0005, 0.02, 0.08)),
        jitter=rng.choice((0.002, 0.03, 0.15)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
        duplicate=rng.choice((0.0, 0.02)),
    )
    names = peers_named(count)
    newcomers = peers_named(count + rng.choice((0, 0, 1, 2)))[count:]
    shape = replace(draw_shape(rng, names), apart=draw_apart(random.Random(f"apart {seed}"), names), cycle=cycle)
    world, oracle = build(seed, count, link, shape, unnoticed=rng.choice((0.0, 0.5)), newcomers=len(newcomers))
    plan = _draw_plan(seed, rng, count)
    plan.arm(world)
    churn = Churn(world, oracle, rng)
    churn.draw(names, newcomers, until=TROUBLE)
    report = Report(seed, count, shape)
    try:
        world.run(TROUBLE + 5.0)
        report.peace = make_peace(world, oracle)
        if world.errors:
            victim, error = world.errors[0]
            raise Violation("Fair blame", f"{victim} blames an honest peer: {error}")
    except Exception as error:
        error.add_note(f"seed {seed}; {count} peers; {shape}; {link}; {'; '.join(churn.told)}; {plan}")
        raise
    report.rounds, report.faults, report.trace = oracle.newest, world.faults, world.trace_digest()
    report.begun, report.at_once = len(oracle.begun), oracle.decided_at_once()
    report.aborts, report.waited = oracle.aborts, oracle.was_too_small
    return report


def _draw_plan(seed: int, rng: random.Random, count: int) -> FaultPlan:
    """Up to six faults; the first is aimed, so that over the seeds each kind falls in each phase."""
    drawn = FaultPlan.draw(
        rng, peers_named(count), count=rng.randint(1, 6), horizon=TROUBLE, kinds=KINDS, phases=PHASES, forever=0.2
    )
    first = drawn.faults[0]
    kind, phase = KINDS[seed % len(KINDS)], PHASES[seed // len(KINDS) % len(PHASES)]
    aimed = Fault(
        kind=kind,
        when=During(phase, rng.randint(1, 4 * count)),
        others=first.others,
        lasts=first.lasts,
        amount=0.2 if kind == "loss" else float(rng.choice((0, 0, 1, 2, 3))),
    )
    return FaultPlan((aimed, *drawn.faults[1:]))


def report_on(seed: int, cycle: tuple[int, ...] = ()) -> Report:
    """`run_seed` for a worker process: what went wrong is in the report."""
    try:
        return run_seed(seed, cycle=cycle)
    except Exception as error:
        return Report(seed, 0, failure=described(error))


def described(error: Exception) -> str:
    """An exception with its notes: the seed and the plan are there."""
    return "".join(traceback.format_exception(error, limit=-4))


if __name__ == "__main__":
    print(run_seed(int(sys.argv[1])))

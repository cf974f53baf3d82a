"""Seeded campaigns: a swarm, misfortune drawn from the seed, then peace, in which everybody must come together."""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from shoal.protocol.ids import PeerId
from shoal.protocol.quorum import is_quorum
from tests.simulation.faults import During, Fault, FaultPlan
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

PHASES = ("scatter", "gather", "prepare", "commit")
KINDS = ("kill", "pause", "partition", "cut", "loss", "accuse", "blip")
SIZES = (3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 10, 12, 16, 24, 32)  # small ones: each loss hurts more
TROUBLE = 15.0  # virtual seconds in which faults strike
PEACE = 240.0  # virtual seconds within which all must come together again
MORE_ROUNDS = 2  # that must commit in peace


@dataclass
class Report:
    """What one seed did."""

    seed: int
    peers: int
    rounds: int = 0  # decided
    begun: int = 0  # for which a group was formed
    at_once: int = 0  # decided in the first attempt
    halted: bool = False  # no quorum was left to go on
    aborts: list[tuple[int, int, str]] = field(default_factory=list)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    trace: str = ""
    failure: str = ""
    peace_took: float = 0.0


def build(
    seed: int, peers: int, link: Link, shape: Shape | None = None, unnoticed: float = 0.0, newcomers: int = 0
) -> tuple[World[Peer], Oracle]:
    """A world with a swarm in it, just started; `newcomers` have a name but no process yet."""
    names = peers_named(peers + newcomers)
    shape = shape or Shape(start_members=peers)
    oracle = Oracle(names[0])
    oracle.start_members = shape.start_members
    seeds = names[:peers]
    world = World(lambda me, now, disk, rng: Peer(me, seeds, disk, rng, oracle, shape), seed, link, unnoticed=unnoticed)
    for name in seeds:
        world.start(name)
    return world, oracle


def run_seed(seed: int, sizes: tuple[int, ...] = SIZES) -> Report:
    """One campaign: Violation, with the seed and its fault plan in its notes, if a promise is broken."""
    rng = random.Random(f"campaign {seed}")
    count = rng.choice(sizes)
    link = Link(
        delay=rng.choice((0.0005, 0.02, 0.08)),
        jitter=rng.choice((0.002, 0.03, 0.15)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
        duplicate=rng.choice((0.0, 0.02)),
    )
    newcomers = rng.choice((0, 0, 1, 2))
    world, oracle = build(seed, count, link, unnoticed=rng.choice((0.0, 0.5)), newcomers=newcomers)
    plan = _draw_plan(seed, rng, count)
    plan.arm(world)
    churn = _draw_churn(world, rng, count, newcomers)
    report = Report(seed, count)
    try:
        world.run(TROUBLE + 5.0)
        report.halted = not make_peace(world, oracle, report)
        if world.errors:
            victim, error = world.errors[0]
            raise Violation("Fair blame", f"{victim} blames an honest peer: {error}")
    except Exception as error:
        error.add_note(f"seed {seed}; {count} peers; {link}; {'; '.join(churn)}; {plan}")
        raise
    report.rounds, report.faults, report.trace = oracle.newest, world.faults, world.trace_digest()
    report.begun, report.at_once = len(oracle.begun), oracle.decided_at_once()
    report.aborts = oracle.aborts
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


def _draw_churn(world: World[Peer], rng: random.Random, count: int, newcomers: int) -> list[str]:
    """Comings and goings that are no misfortune: newcomers, leavers; and now and then a power cut for several."""
    names, told = peers_named(count + newcomers), []
    for name in names[count:]:
        at = rng.uniform(2.0, TROUBLE)
        world.at(at, partial(world.start, name))
        told.append(f"{name} joins at {at:.3f}")
    if count > 3 and rng.random() < 0.3:
        name, at = rng.choice(names[:count]), rng.uniform(4.0, TROUBLE)
        world.at(at, partial(leave, world, name))
        told.append(f"{name} leaves at {at:.3f}")
    if rng.random() < 0.15:
        struck, at = rng.sample(names[:count], (count + 1) // 3), rng.uniform(4.0, TROUBLE)
        world.at(at, partial(power_cut, world, struck, rng.uniform(0.5, 5.0)))
        told.append(f"{struck} lose power at {at:.3f}")
    return told


def leave(world: World[Peer], name: PeerId) -> None:
    """Say goodbye, and end."""
    if world.is_alive(name) and not world.is_paused(name):
        world.command(name, lambda node, now: node.leave(now))
        world.kill(name)


def power_cut(world: World[Peer], struck: list[PeerId], lasts: float) -> None:
    """Kill several at the same instant; they come back one by one."""
    for turn, name in enumerate(struck):
        if world.is_alive(name):
            world.kill(name)
            world.at(world.now + lasts + turn / 7, partial(start_again, world, name))


def start_again(world: World[Peer], name: PeerId) -> None:
    """Start a process, unless somebody else did."""
    if not world.is_alive(name):
        world.start(name)


def make_peace(world: World[Peer], oracle: Oracle, report: Report) -> bool:
    """No more faults: everyone who lives must commit again, on the same state. False if no quorum is left."""
    world.network.heal()
    world.network.set_loss(None)
    for peer in world.living():
        world.resume(peer)
    if not can_go_on(world, oracle):
        return False  # the run waits, and says so; it may never go on by itself
    goal = oracle.newest + MORE_ROUNDS

    def together() -> bool:
        return all(world.node(peer).round >= goal for peer in world.living())

    try:
        report.peace_took = world.run_until(together, within=PEACE)
    except Violation:
        raise
    except AssertionError:
        where = {peer: repr(world.node(peer).member.rounds) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not everywhere {PEACE} s after peace: {where}") from None
    return True


def can_go_on(world: World[Peer], oracle: Oracle) -> bool:
    """Whether the quorum that must decide next is up: alive, and still in the life in which it first voted there.

    A member that was restarted in the middle of a round may have forgotten bytes that it voted for. What somebody has
    voted for may have been decided, and then its own voters must be up as well.
    """
    nodes = {peer: world.node(peer) for peer in world.living()}
    newest = oracle.newest
    is_known = any(node.round >= newest or node.knows(newest) for node in nodes.values())
    if not is_known and not any(node.round == newest - 1 for node in nodes.values()):
        return False  # nobody holds the state any more
    round = newest + 1 if is_known else newest
    up = [peer for peer, node in nodes.items() if node.voted_before_start < round]
    votes = [node.voted_for(round) for node in nodes.values()]
    electorates = [oracle.voters[round - 1], *(vote.proposal.voters for vote in votes if vote is not None)]
    return all(is_quorum(up, voters) for voters in electorates) and (newest > 0 or len(nodes) >= oracle.start_members)


def report_on(seed: int) -> Report:
    """`run_seed` for a worker process: what went wrong is in the report."""
    try:
        return run_seed(seed)
    except Exception as error:
        return Report(seed, 0, failure=described(error))


def described(error: Exception) -> str:
    """An exception with its notes: the seed and the plan are there."""
    return "".join(traceback.format_exception(error, limit=-4))


if __name__ == "__main__":
    print(run_seed(int(sys.argv[1])))

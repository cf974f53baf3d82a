"""Seeded campaigns over members with a log: faults drawn from the seed, then peace, in which all must commit again.

    python -m tests.simulation.campaign FROM TO [FILE]

runs these seeds and prints a line for each. With a file, what is done is noted there, and is not done again: so a long
campaign can be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import Register
from tests.simulation.churn import Churn, draw_apart, draw_shape
from tests.simulation.faults import During, Fault, FaultPlan
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

PHASES = ("scatter", "gather", "prepare", "commit")
KINDS = ("kill", "power", "full", "pause", "partition", "cut", "loss", "accuse", "blip")
SIZES = (2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 10, 12, 16, 24, 32)  # small ones: each loss hurts more
TIERS = {"small": (*range(1, 8),), "middle": (*range(10, 14),), "large": (31,)}  # members, all of whom may vote
DAMAGED = 0.2  # of the seeds: a disk is, once
TROUBLE = 15.0  # virtual seconds in which faults strike
PEACE = 300.0  # virtual seconds within which all must come together again
MORE_ROUNDS = 2
SETTLING = 5.0  # seconds between the last fault and peace


@dataclass(frozen=True)
class Peace:
    """How a run went on after the last fault."""

    excuse: str = ""  # why the remaining members cannot go on
    took: float = 0.0  # virtual seconds until they had come together
    revived: int = 0  # members that had to be started again


@dataclass
class Report:
    """The outcome of one seed."""

    seed: int
    peers: int
    shape: Shape = field(default_factory=Shape)
    rounds: int = 0  # decided
    waited: bool = False  # for enough members, at least once
    peace: Peace = field(default_factory=Peace)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    trace: str = ""
    failure: str = ""


def build(
    seed: int, peers: int, link: Link, shape: Shape | None = None, unnoticed: float = 0.0, newcomers: int = 0
) -> tuple[World[Peer], Oracle]:
    """A world with a swarm in it, just started; `newcomers` have a name but no process yet."""
    names = peers_named(peers + newcomers)
    shape = shape or Shape(start_members=peers)
    oracle = Oracle()
    seeds = names[:peers]
    world = World(lambda me, now, disk, rng: Peer(me, seeds, disk, rng, oracle, shape), seed, link, unnoticed=unnoticed)
    world.taps.append(oracle.saw)
    world.post.unreachable.extend(shape.unreachable)
    for name in seeds:
        world.start(name)
    return world, oracle


def make_peace(world: World[Peer], oracle: Oracle) -> Peace:
    """End all faults; Violation unless all living members commit again, on the same state."""
    world.watchers.clear()
    world.network.heal()
    world.network.set_loss(None)
    for peer in world.living():
        world.spare(peer)
        world.resume(peer)
        world.free_disk(peer)
    dead = [peer for peer in world.disks if not world.is_alive(peer) and peer not in oracle.left]
    revived = dead if excuse(world) else []
    for peer in revived:
        world.start(peer)
    why = excuse(world)
    return Peace(why, 0.0 if why else _come_together(world, oracle), len(revived))


def newest_register(world: World[Peer]) -> Register:
    """That of whoever has read farthest."""
    return max((node.member.log.register for node in world.nodes()), key=lambda register: register.number)


def excuse(world: World[Peer]) -> str:
    """Why the living members cannot go on; empty: Termination promises that they do."""
    nodes = {peer: world.node(peer) for peer in world.living()}
    if not nodes:
        return "nobody is left"
    register, shape = newest_register(world), next(iter(nodes.values())).shape
    here = [voter for voter in register.voters if voter in nodes and nodes[voter].member.log.votes_here]
    if not Crash().is_quorum(here, register.voters, 0):
        return f"no quorum of the voters {register.voters}: here are {here}"
    pending = [node.member.log.core.lock for node in nodes.values()]
    for lock in pending:
        assert lock is None or lock.entry.number <= register.number + 1
    first = not any(state.round for state in register.parts)
    needed = max(shape.min_members, shape.start_members if first else 1)
    if len(nodes) < needed:
        return f"{len(nodes)} of at least {needed} members are left"
    return "" if any(peer not in shape.keepers for peer in nodes) else "nobody who trains is left"


def _come_together(world: World[Peer], oracle: Oracle) -> float:
    goal = oracle.newest + MORE_ROUNDS
    try:
        return world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=PEACE)
    except Violation:
        raise
    except AssertionError:
        where = {
            peer: f"{world.node(peer).member.rounds} {world.node(peer).member.log.core.view}" for peer in world.living()
        }
        raise Violation("Termination", f"round {goal} is not everywhere {PEACE} s after peace: {where}") from None


def run_seed(seed: int, sizes: tuple[int, ...] = SIZES, cycle: tuple[int, ...] = ()) -> Report:
    """One campaign: Violation, with the seed and its fault plan in its notes, if a promise is broken."""
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
    if random.Random(f"damage {seed}").random() < DAMAGED:
        churn.draw_damage(random.Random(f"damaged {seed}"), names, until=TROUBLE)
    report = Report(seed, count, shape)
    try:
        world.run(TROUBLE + SETTLING)
        report.peace = make_peace(world, oracle)
        if world.errors:
            victim, error = world.errors[0]
            raise Violation("Fair blame", f"{victim} blames an honest peer: {error}")
    except Exception as error:
        error.add_note(f"seed {seed}; {count} peers; {shape}; {link}; {'; '.join(churn.told)}; {plan}")
        raise
    report.rounds, report.faults, report.trace = oracle.newest, world.faults, world.trace_digest()
    report.waited = oracle.was_too_small
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


def report_on(seed: int, cycle: tuple[int, ...] = (), sizes: tuple[int, ...] = SIZES) -> Report:
    """`run_seed` for a worker process: what went wrong is in the report."""
    try:
        return run_seed(seed, sizes, cycle)
    except Exception as error:
        return Report(seed, 0, failure=told_of(error))


def told_of(error: Exception) -> str:
    """What went wrong, with its notes."""
    notes = getattr(error, "__notes__", [])
    told = "".join(traceback.format_exception_only(error))
    return told if str(error) in told and notes[-1] in told else f"{told}{notes}"


def line_of(report: Report) -> str:
    """A report on one line: seed, members, rounds, seconds until all were together, and what went wrong."""
    words = {"excuse": report.peace.excuse, "failure": report.failure[:1500]}
    told = json.dumps({key: text for key, text in words.items() if text})
    return f"{report.seed} {report.peers} {report.rounds} {report.peace.took:.1f} {told}"


def done_in(path: Path) -> dict[int, str]:
    """The lines of the seeds that are done; one that was being written when the power failed is not."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(line.split()[0]): line for line in lines}


def go_on(seeds: Iterable[int], path: Path | None, play: Callable[[int], Report]) -> dict[int, str]:
    """Play those of `seeds` that are not done yet, and note and print each; the lines of all."""
    done = done_in(path) if path is not None else {}
    if path is not None:
        path.write_text("".join(f"{line}\n" for line in done.values()))
    for seed in seeds:
        if seed not in done:
            done[seed] = line_of(play(seed))
            print(done[seed], flush=True)
            if path is not None:
                with path.open("a") as file:
                    file.write(f"{done[seed]}\n")
    return done


def summary(lines: Iterable[str]) -> str:
    """What came of so many seeds."""
    parts = [line.split(" ", 4) for line in lines]
    told = [json.loads(part[4]) for part in parts]
    failed = [part[0] for part, words in zip(parts, told, strict=True) if "failure" in words]
    excused = sum("excuse" in words for words in told)
    rounds = sum(int(part[2]) for part in parts)
    return f"{len(parts)} seeds: {rounds} rounds, {excused} excused, {len(failed)} failed {' '.join(failed)}"


def main(play: Callable[[int], Report]) -> None:
    """Play the seeds that the command line names."""
    first, last, *files = sys.argv[1:]
    print(summary(go_on(range(int(first), int(last)), Path(files[0]) if files else None, play).values()))


if __name__ == "__main__":
    main(report_on)

"""All members of a run are stopped at about the same time, at any event of a round, and then started again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import VoteRecord
from tests.simulation.campaign import build
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.resting import load_rest, save_rest
from tests.simulation.swarm import Peer, Shape
from tests.simulation.world import World

MORE_ROUNDS = 3
SOON = 60.0  # virtual seconds in which they must commit


@dataclass(frozen=True)
class Stopping:
    """All are stopped at the `event`-th event of any member, counted from when all have committed round `after`."""

    event: int
    seed: int = 0
    peers: int = 3
    link: Link = LAN
    min_members: int = 2
    spread: float = 0.01  # virtual seconds between the first stop and the last
    after: int = 1
    killed: float | None = None  # virtual seconds before the stop at which the first voter is killed; None: it is not
    cut_short: bool = False  # whether the member that keeps its vote is killed before it has written more
    lost: bool = False  # whether only one of the members that signed off comes back; in a run of two, none


def run_stopping(case: Stopping) -> World[Peer]:
    """Play it; Violation if the run does not go on."""
    shape = Shape(start_members=case.peers, min_members=case.min_members)
    world, oracle = build(case.seed, case.peers, case.link, shape)
    rng = random.Random(f"stopping {case.seed} {case.event}")
    try:
        world.run_until(lambda: all(node.round >= case.after for node in world.nodes()), within=60.0)
        _wait_for(world, case.event)
        if case.killed is not None:
            world.kill(next(iter(world.nodes())).member.rounds.departure.voters[0])
            world.run(case.killed)
        _stop_all(world, rng, case.spread)
        if case.cut_short and not _others_have_kept(world, oracle.ledger.newest):
            return world
        names = list(world.disks)
        rng.shuffle(names)
        if case.lost:
            names = _one_besides_the_voters(world, oracle, names)
        for name in names:
            world.at(world.now + rng.uniform(0.0, 2.0), partial(world.start, name))
        world.run(2.0)
        _go_on(world, oracle.ledger.newest + MORE_ROUNDS)
        if world.errors:
            raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")
        ledger = oracle.ledger
        world.run_until(lambda: set(names) <= set(ledger.voters_after(ledger.newest) or ()), within=SOON)
    except Exception as error:
        error.add_note(str(case))
        raise
    return world


def run_voter_stopping(seed: int, link: Link) -> None:
    """The first member to vote is stopped, and all others are killed; Violation if the run does not go on."""
    world, oracle = build(seed, 3, link, Shape(start_members=3, min_members=2))
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)

    def has_voted(peer: PeerId) -> bool:
        rounds = world.node(peer).member.rounds
        return rounds.attempt is not None and rounds.departure.has_voted

    world.run_until(lambda: any(map(has_voted, world.living())), within=60.0, every=0.0005)
    voter = next(filter(has_voted, world.living()))
    for other in [peer for peer in world.living() if peer != voter]:
        world.kill(other)
    _stop_all(world, random.Random(seed), 0.0)
    rested = load_rest(world.disks[voter])
    assert rested is not None
    assert rested.rest.draft
    for name in world.disks:
        world.start(name)
    world.run(2.0)
    _go_on(world, oracle.ledger.newest + MORE_ROUNDS)


def _wait_for(world: World[Peer], event: int) -> None:
    seen = 0

    def count(_: PeerId) -> None:
        nonlocal seen
        seen += 1

    world.watchers.append(count)
    world.run_until(lambda: seen >= event, within=60.0, every=0.001)
    world.watchers.remove(count)


def _stop_all(world: World[Peer], rng: random.Random, spread: float) -> None:
    """Stop all members; a process ends once its member has parted."""

    def end(peer: PeerId) -> None:
        if world.node(peer).has_parted:
            world.at(world.now, partial(world.kill, peer))

    world.watchers.append(end)
    for name in world.living():
        stop: Callable[[], None] = partial(world.command, name, lambda node, now: node.stop(now))
        world.at(world.now + rng.uniform(0.0, spread), stop)
    world.run_until(lambda: not world.living(), within=10.0)
    world.watchers.remove(end)


def _one_besides_the_voters(world: World[Peer], oracle: Oracle, names: list[PeerId]) -> list[PeerId]:
    """The fewest members that the run needs: those that kept their vote, and one more in a run of three or more."""
    voters = [name for name in names if _keeps_vote(world.disks[name])]
    if not voters:
        raise Violation("Termination", f"after round {oracle.ledger.newest} nobody has kept a vote")
    return [*voters, *(name for name in names if name not in voters)][: max(len(voters), min(2, len(names) - 1))]


def _others_have_kept(world: World[Peer], newest: int) -> bool:
    """Remove what the voters have written; False if only they know the newest round, as one may decide alone."""
    for disk in filter(_keeps_vote, world.disks.values()):
        save_rest(disk, None, {})
    kept = [rested.rest.newest for disk in world.disks.values() if (rested := load_rest(disk)) is not None]
    if not kept:
        raise Violation("Termination", "nobody but who keeps its vote has kept the run")
    return newest in kept


def _keeps_vote(disk: Mapping[str, Message]) -> bool:
    record = disk.get("vote-0")
    return isinstance(record, VoteRecord) and record.left <= record.round


def _go_on(world: World[Peer], goal: int) -> None:
    try:
        world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    except Violation:
        raise
    except AssertionError:
        where = {peer: repr(world.node(peer).member.rounds) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not committed after {SOON} s: {where}") from None

"""One member says goodbye, at any event of its life; then another one dies. Whoever is left must go on.

The one that is left comes first among the voters that remain, so that it is a quorum without the leaver: were the
leaver still counted, nobody could decide anything any more. The death comes `after` the goodbye, when what the two had
decided between themselves has reached the third.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.ids import PeerId
from tests.simulation.campaign import build, leave
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

MORE_ROUNDS = 2  # that the survivor must commit
SOON = 60.0  # virtual seconds in which it must


@dataclass(frozen=True)
class Leaving:
    """Who leaves at which of its events, counted from its first committed round."""

    leaver: PeerId
    event: int
    seed: int = 0
    link: Link = LAN
    after: float = 0.1  # virtual seconds from the goodbye to the death
    newcomer: bool = False  # the leaver comes only when the others have begun


def run_leaving(case: Leaving, rounds: int = 2) -> bool:
    """Play it; False if `rounds` rounds ended before the event came. Violation if the survivor is stuck."""
    world, oracle = _swarm(case)
    try:
        if not _say_goodbye(world, case, rounds):
            return False
        _kill_one(world, oracle, case)
        goal = oracle.newest + MORE_ROUNDS
        _go_on(world, goal)
        if world.errors:
            raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")
    except Exception as error:
        error.add_note(str(case))
        raise
    return True


def _swarm(case: Leaving) -> tuple[World[Peer], Oracle]:
    """All have committed a round; or, with a newcomer, it has just come."""
    early = 2 if case.newcomer else 3
    world, oracle = build(case.seed, early, case.link, Shape(start_members=early), newcomers=3 - early)
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)
    if case.newcomer:
        world.start(case.leaver)
    return world, oracle


def _say_goodbye(world: World[Peer], case: Leaving, rounds: int) -> bool:
    """Let the leaver go at its event; whether that came in time."""
    seen, last = 0, world.node(peers_named(3)[0]).round + rounds

    def count(peer: PeerId) -> None:
        nonlocal seen
        seen += peer == case.leaver
        if seen == case.event:
            world.watchers.remove(count)
            world.at(world.now, lambda: leave(world, case.leaver))

    world.watchers.append(count)
    leaver = world.node(case.leaver)
    world.run_until(lambda: not world.is_alive(case.leaver) or leaver.round >= last, within=60.0, every=0.001)
    return not world.is_alive(case.leaver)


def _kill_one(world: World[Peer], oracle: Oracle, case: Leaving) -> None:
    world.run(case.after)
    voters = [*oracle.voters[oracle.newest], *world.living()]
    survivor = next(voter for voter in voters if voter != case.leaver)
    for peer in world.living():
        if peer != survivor:
            world.kill(peer)


def _go_on(world: World[Peer], goal: int) -> None:
    try:
        world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    except Violation:
        raise
    except AssertionError:
        where = {peer: (repr(world.node(peer).member.rounds), world.node(peer).waiting) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not committed after {SOON} s: {where}") from None

"""One member says goodbye, at any event of its life; then another one dies, or it comes back. The others must go on.

If one dies, the survivor is the first of the remaining voters, and so a quorum without the leaver; if the leaver were
still counted, nothing could be decided any more. The death comes `after` seconds after the goodbye, when what the other
two had decided between themselves has reached the third. If the leaver comes back, its old goodbyes keep arriving.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Leave
from tests.simulation.campaign import build
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

MORE_ROUNDS = 2  # that the survivor must commit
SOON = 60.0  # virtual seconds in which it must


@dataclass(frozen=True)
class Leaving:
    """Which member leaves, and at which of its events, counted from its first committed round."""

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
    """Three members that have committed a round; a leaver that is a newcomer has just been started instead."""
    early = 2 if case.newcomer else 3
    world, oracle = build(case.seed, early, case.link, Shape(start_members=early), newcomers=3 - early)
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)
    if case.newcomer:
        world.start(case.leaver)
    return world, oracle


def _say_goodbye(world: World[Peer], case: Leaving, rounds: int) -> bool:
    """Have the leaver leave at its event; False if `rounds` rounds ended before."""
    seen, last = 0, world.node(peers_named(3)[0]).round + rounds

    def count(peer: PeerId) -> None:
        nonlocal seen
        seen += peer == case.leaver
        if seen == case.event:
            world.watchers.remove(count)
            world.at(world.now, lambda: _leave(world, case.leaver))

    world.watchers.append(count)
    leaver = world.node(case.leaver)
    world.run_until(lambda: not world.is_alive(case.leaver) or leaver.round >= last, within=60.0, every=0.001)
    return not world.is_alive(case.leaver)


def _leave(world: World[Peer], leaver: PeerId) -> None:
    world.command(leaver, lambda node, now: node.leave(now))
    world.kill(leaver)


def _kill_one(world: World[Peer], oracle: Oracle, case: Leaving) -> None:
    world.run(case.after)
    voters = [*(oracle.ledger.voters_after(oracle.newest) or ()), *world.living()]
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
        where = {peer: repr(world.node(peer).member.rounds) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not committed after {SOON} s: {where}") from None


def run_return(case: Leaving, members: int, away: float) -> bool:
    """Let the leaver come back, to a run that needs `members`; it must contribute, and in the end vote again."""
    world, oracle = build(case.seed, members, case.link, Shape(start_members=members, min_members=members))
    world.run_until(lambda: all(node.round >= 1 for node in world.nodes()), within=60.0)
    echo = _Echo(world, case.leaver)
    try:
        if not _say_goodbye(world, case, 2):
            return False
        world.run(away)
        world.start(case.leaver)
        world.watchers.append(echo)
        _go_on(world, oracle.newest + 4)
        back = world.node(case.leaver)
        ledger = oracle.ledger
        world.run_until(lambda: ledger.last_vote(case.leaver, back.round + 1) is not None, within=20.0, every=0.001)
        if case.leaver not in (ledger.voters_after(oracle.newest) or ()):
            raise Violation("Termination", f"{case.leaver} is back, but no voter any more")
        if world.errors:
            raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")
    except Exception as error:
        error.add_note(str(case))
        raise
    return True


class _Echo:
    """Delivers the leaver's goodbyes again and again, to everybody."""

    def __init__(self, world: World[Peer], leaver: PeerId) -> None:
        self._world = world
        self._leaver = leaver
        self._words: list[Message] = []
        node, self._pause = world.node(leaver), 0
        sound = node.leave

        def noted(now: float) -> list[Effect]:
            effects = sound(now)
            self._words = list({id(each.message): each.message for each in effects if _is_goodbye(each)}.values())
            return effects

        node.leave = noted  # type: ignore[method-assign]

    def __call__(self, peer: PeerId) -> None:
        self._pause = (self._pause + 1) % 10
        if peer != self._leaver and self._pause == 0:
            for word in self._words:
                self._world.at(self._world.now, partial(self._say, peer, word))

    def _say(self, to: PeerId, word: Message) -> None:
        self._world.command(to, lambda node, now: node.receive(now, self._leaver, word))


def _is_goodbye(effect: Effect) -> TypeGuard[Send]:
    return isinstance(effect, Send) and isinstance(effect.message, Leave)

"""One death and nothing else: aimed at a role, a phase, an event, an effect. The round must commit all the same.

Nobody's clock, link or disk has a fault, so whatever goes wrong is the death's doing. Both quorums survive it: at
least three peers, and not in round 1, whose only voter is the creator.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Contribution, Reassign
from tests.simulation.campaign import described
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

ROLES = ("leader", "owner", "contributor")
MOMENTS = {"matching": 6, "scatter": 12, "gather": 12, "prepare": 3, "commit": 2}  # the last event to strike at
SOON = 90.0  # virtual seconds within which the round must be everywhere, even if the death goes unnoticed


@dataclass
class Death:
    """The outcome of one seed."""

    seed: int
    role: str = ""
    moment: str = ""
    size: int = 0
    struck: bool = False  # the moment came
    had_roster: bool = False
    took: float = 0.0  # from the death until the round was everywhere
    resent: int = 0  # contributions, by the survivor that sent most again
    failure: str = ""


class CountingWorld(World[Peer]):
    """Counts how often each member sent each contribution, and how often a chunk was moved."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent_chunks: Counter[tuple[PeerId, int, int]] = Counter()  # (sender, round, chunk)
        self.moves: dict[int, set[tuple[int, tuple[int, int]]]] = defaultdict(set)  # (chunk, epoch), by round

    def _send(self, process: Process[Peer], effect: Send, encoded: dict) -> None:
        message = effect.message
        if isinstance(message, Contribution):
            self.sent_chunks[process.peer, message.round, message.chunk] += 1
        if isinstance(message, Reassign):
            self.moves[message.round].update((move.chunk, move.epoch) for move in message.assignments)
        super()._send(process, effect, encoded)

    def resent(self, peer: PeerId, round: int) -> int:
        """How many contributions `peer` sent again in a round."""
        return sum(
            count - 1 for (sender, number, _), count in self.sent_chunks.items() if (sender, number) == (peer, round)
        )


class Assassin:
    """Watches until somebody of that role handles its k-th event of that phase in that round, and kills it."""

    def __init__(self, world: CountingWorld, death: Death, round: int, event: int, effects: int) -> None:
        self._world = world
        self._death = death
        self._round = round
        self._event = event
        self._effects = effects
        self.victim: PeerId | None = None
        self.attempt = 0  # in which a group was at work
        self.share = 0  # the victim's chunks
        self.at = 0.0

    def __call__(self, peer: PeerId) -> None:
        node = self._world.node(peer)
        if self.victim is not None:
            self._look_at_group(node)
        elif self._is_target(node):
            self._event -= 1
            if self._event <= 0:
                self._strike(peer)

    def _strike(self, peer: PeerId) -> None:
        self.victim, self.at, self._death.struck = peer, self._world.now, True
        for node in self._world.nodes():
            self._look_at_group(node)
        self._death.had_roster = self.attempt > 0
        self._world.kill(peer, self._effects)

    def _look_at_group(self, node: Peer) -> None:
        attempt = node.member.rounds.attempt
        if self.attempt == 0 and attempt is not None and attempt.plan.round == self._round:
            assert self.victim is not None
            self.attempt, self.share = attempt.number, attempt.plan.owners.count(self.victim)

    def _is_target(self, node: Peer) -> bool:
        role, moment = node.role(), node.phase()
        return (role, moment) == (self._death.role, self._death.moment) and node.round + 1 == self._round


def _which_event(rng: random.Random, death: Death) -> int:
    """A later one only where there will be one: the only contributor sees few, a vote follows a proposal at once."""
    if death.role == "owner" and death.moment != "prepare":
        return rng.randint(1, MOMENTS[death.moment])
    return rng.randint(1, 2) if death.role == "leader" or death.moment != "prepare" else 1


def run_death(seed: int, cycle: tuple[int, ...] = ()) -> Death:
    """One seed; Violation if the death aborted the round or cost more than it may.

    With a `cycle`, rounds have so many chunks in turn.
    """
    rng = random.Random(f"death {seed}")
    death = Death(seed, ROLES[seed % 3], list(MOMENTS)[seed // 3 % 5], rng.choice((3, 4, 5, 8)))
    names = peers_named(death.size)
    keepers = names[1:2] if death.size > 3 and random.Random(f"keeper {seed}").random() < 0.4 else []
    shape = Shape(
        chunks=rng.choice((4, 9)), start_members=death.size, unreachable=tuple(names[-1:]), keepers=tuple(keepers)
    )
    link = Link(delay=rng.choice((0.0005, 0.04)), jitter=rng.choice((0.002, 0.05)))
    if death.moment == "prepare":  # short, but for those whose last bytes come after the proposal
        link, shape = Link(delay=0.0005, jitter=0.1), dataclasses.replace(shape, chunks=24)
    shape = dataclasses.replace(shape, cycle=cycle)
    oracle = Oracle(names[0])
    world = CountingWorld(
        lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape),
        seed,
        link,
        unnoticed=rng.choice((0.0, 1.0)),
    )
    assassin = Assassin(
        world,
        death,
        rng.randint(2, 3),
        _which_event(rng, death),
        rng.choice((0, 0, 1, 2, 4)),
    )
    world.watchers.append(assassin)
    world.taps.append(oracle.saw)
    world.post.unreachable.extend(shape.unreachable)
    for name in names:
        world.start(name)
    try:
        _judge(world, oracle, assassin, death)
    except Exception as error:
        error.add_note(f"seed {seed}; {death}; {link}; victim {assassin.victim}")
        raise
    return death


def report_on(seed: int, cycle: tuple[int, ...] = ()) -> Death:
    """`run_death` for a worker process."""
    try:
        return run_death(seed, cycle)
    except Exception as error:
        return Death(seed, failure=described(error))


def _judge(world: CountingWorld, oracle: Oracle, assassin: Assassin, death: Death) -> None:
    round = assassin._round
    try:
        world.run_until(lambda: assassin.victim is not None or oracle.newest > round, within=60.0)
        if assassin.victim is None:
            return
        world.run(0.001)
        world.kill(assassin.victim)
        world.run_until(lambda: all(node.round >= round for node in world.nodes()), within=SOON)
        death.took = world.now - assassin.at
        world.run_until(lambda: all(node.round >= round + 1 for node in world.nodes()), within=SOON)
    except Violation:
        raise
    except AssertionError as error:
        raise Violation("Termination", f"one death keeps round {round} from being decided: {error}") from None
    if any(number == round for number, _, _ in oracle.aborts):
        raise Violation("Termination", f"one death aborted round {round}: {oracle.aborts}")
    if assassin.attempt and oracle.decisions[round].certificate.proposal.attempt != assassin.attempt:
        raise Violation("Termination", f"round {round} needed another attempt after one death")
    if world.errors:
        raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")
    death.resent = max(world.resent(peer, round) for peer in world.living())
    if death.resent > assassin.share:
        raise Violation("Cheap loss", f"{death.resent} chunks sent again for the victim's {assassin.share}")

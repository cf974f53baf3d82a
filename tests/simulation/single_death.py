"""One death and nothing else, in a run that decides by the log: the round must be decided all the same, and cheaply.

Nobody's clock, link or disk has a fault, so whatever goes wrong is the death's doing. All who train vote by then.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Contribution
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

ROLES = ("proposer", "owner", "contributor")
MOMENTS = {"matching": 6, "scatter": 3, "gather": 12, "prepare": 3, "commit": 2}  # the last event to strike at
PROMPT = 8.0  # virtual seconds within which it must be, if the death is noticed at once
SOON = 90.0  # virtual seconds within which the round must be everywhere, even if the death goes unnoticed


@dataclass
class Death:
    """The outcome of one seed."""

    seed: int
    role: str = ""
    moment: str = ""
    size: int = 0
    struck: bool = False  # the moment came
    took: float = 0.0  # from the death until the round was everywhere
    resent: int = 0  # contributions, by the survivor that sent most again
    share: int = 0  # the victim's chunks
    failure: str = ""


class CountingWorld(World[Peer]):
    """Counts how often each member sent each contribution."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent_chunks: Counter[tuple[PeerId, int, int]] = Counter()  # (sender, round, chunk)

    def _send(self, process: Process[Peer], effect: Send, encoded: dict[int, Any]) -> None:
        if isinstance(effect.message, Contribution):
            self.sent_chunks[process.peer, effect.message.round, effect.message.chunk] += 1
        super()._send(process, effect, encoded)

    def resent(self, peer: PeerId, round: int) -> int:
        """How many contributions `peer` sent again in a round."""
        return sum(
            count - 1 for (sender, number, _), count in self.sent_chunks.items() if (sender, number) == (peer, round)
        )


def run_death(seed: int, cycle: tuple[int, ...] = ()) -> Death:
    """One seed; Violation if the death cost more than it may.

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
    if death.moment in ("scatter", "prepare"):  # short, but for those whose last bytes come late
        link, shape = Link(delay=0.0005, jitter=0.1), replace(shape, chunks=24)
    shape = replace(shape, cycle=cycle)
    oracle, unnoticed = Oracle(), rng.choice((0.0, 1.0))
    world = CountingWorld(
        lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape),
        seed,
        link,
        unnoticed=unnoticed,
    )
    world.taps.append(oracle.saw)
    world.post.unreachable.extend(shape.unreachable)
    for name in names:
        world.start(name)
    event = rng.randint(1, MOMENTS[death.moment])
    effects = rng.choice((0, 0, 1, 2, 4))
    try:
        _judge(world, oracle, death, event, effects)
        if death.took > PROMPT and not unnoticed:
            raise Violation("Termination", f"the round is everywhere {death.took:.1f} s after the death, not sooner")
    except Exception as error:
        error.add_note(f"seed {seed}; {death}; {link}; event {event}, effects {effects}")
        raise
    return death


def report_on(seed: int, cycle: tuple[int, ...] = ()) -> Death:
    """`run_death` for a worker process."""
    try:
        return run_death(seed, cycle)
    except Exception as error:
        return Death(seed, failure=f"{error} {error.__notes__}")


def _judge(world: CountingWorld, oracle: Oracle, death: Death, event: int, effects: int) -> None:
    trainers = death.size - len(next(iter(world.nodes())).shape.keepers)

    def all_vote() -> bool:
        return all(len(node.member.log.register.voters) == trainers for node in world.nodes())

    world.run_until(all_vote, within=120.0)
    round, at, left = oracle.newest + 2, 0.0, event
    victims: list[PeerId] = []

    def strike(peer: PeerId) -> None:
        nonlocal left, at
        node = world.node(peer)
        if victims or (node.role(), node.phase(), node.round + 1) != (death.role, death.moment, round):
            return
        left -= 1
        if left <= 0:
            victims.append(peer)
            at, death.struck = world.now, True
            exchange = node.member.rounds.round.exchange if node.member.rounds.round is not None else None
            death.share = exchange.owners().count(peer) if exchange is not None else 0
            world.kill(peer, effects)

    world.watchers.append(strike)
    try:
        world.run_until(lambda: bool(victims) or oracle.newest > round, within=60.0)
        if not victims:
            return
        world.run(0.001)
        world.kill(victims[0])
        world.run_until(lambda: all(node.round >= round for node in world.nodes()), within=SOON)
        death.took = world.now - at
        world.run_until(lambda: all(node.round >= round + 1 for node in world.nodes()), within=SOON)
    except Violation:
        raise
    except AssertionError as error:
        raise Violation("Termination", f"one death keeps round {round} from being decided: {error}") from None
    if world.errors:
        raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")
    if oracle.voided:
        raise Violation("Termination", f"rounds {sorted(oracle.voided)} are void because of one death")
    death.resent = max(world.resent(peer, round) for peer in world.living())
    if death.resent > death.share:
        raise Violation("Cheap loss", f"{death.resent} chunks sent again for the victim's {death.share}")

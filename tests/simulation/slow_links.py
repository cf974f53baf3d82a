"""A swarm on home links: each payload weighs a megabyte, uplinks are slow and unequal, and nothing is sent twice."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Mean
from tests.simulation.links import Link
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

HOME = Link(delay=0.02, jitter=0.03)
MBIT = 125_000.0  # bytes per second


class HomeWorld(World[Peer]):
    """Counts what is sent: the contributions of each member, the means that come to each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.contributions: dict[int, Counter[tuple[PeerId, int]]] = defaultdict(Counter)  # by round: (from, chunk)
        self.black_holes: set[tuple[PeerId, PeerId]] = set()  # (from, to): control messages pass, payloads vanish
        self.means: dict[int, Counter[tuple[PeerId, int]]] = defaultdict(Counter)  # by round: (to, chunk)

    def _send(self, process: Process[Peer], effect: Send, encoded: dict) -> None:
        match effect.message:
            case Contribution(round=round, chunk=chunk):
                self.contributions[round][process.peer, chunk] += 1
            case Mean(round=round, chunk=chunk):
                self.means[round][effect.to, chunk] += 1
        if not (effect.message.bulk and (process.peer, effect.to) in self.black_holes):
            super()._send(process, effect, encoded)

    def throttle(self, peer: PeerId, rate: float) -> None:
        """From its next payload on, `peer` sends at `rate`."""
        uplink = self._processes[peer].uplink
        assert uplink is not None
        uplink.rate = rate

    def to_leave(self, peer: PeerId) -> list[Message]:
        """The payloads that wait for the uplink of `peer`, or are on it."""
        uplink = self._processes[peer].uplink
        assert uplink is not None
        return [parcel.message for parcel in uplink.waiting]

    def again(self, round: int) -> dict[str, int]:
        """How many payloads of `round` were sent again, by kind."""
        counts = {"contributions": self.contributions[round], "means": self.means[round]}
        return {kind: sum(count - 1 for count in each.values()) for kind, each in counts.items()}

    def resent(self, peer: PeerId, round: int) -> int:
        """How many contributions `peer` sent again."""
        return sum(count - 1 for (sender, _), count in self.contributions[round].items() if sender == peer)


def home_swarm(
    seed: int,
    rates: Sequence[float],
    chunks: int,
    unnoticed: float = 0.0,
    measured: bool = False,
    keepers: Sequence[int] = (),
) -> tuple[HomeWorld, Oracle]:
    """A swarm whose members send at these rates (bytes per second), and may know it, standing on round 0.

    `keepers`: the places of those who do not train.
    """
    names = peers_named(len(rates))
    oracle = Oracle()
    ups = tuple((name, int(rate)) for name, rate in zip(names, rates, strict=True)) if measured else ()
    shape = Shape(chunks=chunks, start_members=len(names), ups=ups, keepers=tuple(names[place] for place in keepers))
    world = HomeWorld(
        lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape), seed, HOME, unnoticed=unnoticed
    )
    world.taps.append(oracle.saw)
    for name, rate in zip(names, rates, strict=True):
        world.network.set_uplink(name, rate)
        world.start(name)
    return world, oracle


def unequal(seed: int) -> list[float]:
    """3 to 8 uplinks between 5 and 50 Mbit/s; about every third is five to twenty times slower."""
    rng = random.Random(f"uplinks {seed}")
    rates = [rng.uniform(5, 50) * MBIT for _ in range(rng.randint(3, 8))]
    return [rate / rng.uniform(5, 20) if rng.random() < 0.3 else rate for rate in rates]


def run_to(world: HomeWorld, round: int, within: float) -> float:
    """Run until every living member holds `round`; Violation if that takes too long."""
    try:
        return world.run_until(lambda: all(node.round >= round for node in world.nodes()), within, every=0.5)
    except Violation:
        raise
    except AssertionError:
        where = {peer: repr(world.node(peer).member.rounds) for peer in world.living()}
        raise Violation("Termination", f"round {round} is not everywhere after {within} s: {where}") from None

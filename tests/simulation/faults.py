"""Faults as data: what happens to which peer, and when; drawn from a seed, or written out by a test.

`when` is a time, or a moment in the victim's own work: the k-th event that a node handles in a phase. The
second kind hits even short phases often. The world counts each fault under the phase its victim was in.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shoal.protocol.base.ids import PeerId
from tests.simulation.disks import lose_power
from tests.simulation.node import Node
from tests.simulation.world import Step, World


@dataclass(frozen=True, slots=True)
class At:
    """At a virtual time."""

    time: float


@dataclass(frozen=True, slots=True)
class During:
    """When a node (the victim, or anyone if no victim is named) handles its `event`-th event in `phase`."""

    phase: str
    event: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, undone after `lasts` seconds; 0 means never."""

    kind: str  # a key of KINDS
    when: At | During
    victim: PeerId | None = None  # None: the node that meets `when`
    others: tuple[PeerId, ...] = ()  # the other side of a cut, partition, accusation or blip
    lasts: float = 0.0
    amount: float = 0.0  # loss: the share lost; kill: effects still carried out before it dies


Undo = Callable[[], None]
Strike = Callable[[World[Any], PeerId, Fault], Undo]


def _kill(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    world.kill(victim, int(fault.amount))

    def undo() -> None:
        world.spare(victim)
        start_again(world, victim)

    return undo


def start_again(world: World[Any], peer: PeerId) -> None:
    """Start a new process with the old disk, unless one runs already."""
    if not world.is_alive(peer):
        world.start(peer)


def _power(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    world.kill(victim)
    lose_power(world.disks[victim], random.Random(f"{fault} {world.seed}"))
    return lambda: start_again(world, victim)


def _full(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    world.fill_disk(victim)
    return lambda: world.free_disk(victim)


def _pause(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    world.pause(victim)
    return lambda: world.resume(victim)


def _partition(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    side = [victim, *fault.others]
    rest = [peer for peer in world.disks if peer not in side]
    world.network.partition(side, rest)
    return lambda: world.network.mend_all([*product(side, rest), *product(rest, side)])


def _cut(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    for other in fault.others:
        world.network.cut(victim, other)
    return lambda: world.network.mend_all(product([victim], fault.others))


def _loss(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    world.network.set_loss(fault.amount)
    return lambda: world.network.set_loss(None)


def _accuse(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    for other in fault.others:
        world.command(victim, _accusation(other))
    return lambda: None


def _accusation(other: PeerId) -> Step[Node]:
    return lambda node, now: node.accuse(now, other)


def _blip(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    for other in fault.others:
        world.reset_link(victim, other)
    return lambda: None


KINDS: dict[str, Strike] = {
    "kill": _kill,  # SIGKILL; restarted from its disk if it `lasts`
    "power": _power,  # the machine goes off, and is started again
    "full": _full,  # nothing can be written
    "pause": _pause,  # SIGSTOP and SIGCONT
    "partition": _partition,  # the victim and `others` from the rest
    "cut": _cut,  # what the victim sends to `others` is lost, one way
    "loss": _loss,  # on every link
    "accuse": _accuse,  # the victim believes that `others` are dead
    "blip": _blip,  # the victim's connections with `others` break and can be made again at once
}


class FaultPlan:
    """Faults to inject into one world, by its clock or by the phases of its nodes."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)

    @classmethod
    def draw(
        cls,
        rng: random.Random,
        peers: Sequence[PeerId],
        *,
        count: int,
        horizon: float,
        kinds: Sequence[str] = tuple(KINDS),
        phases: Sequence[str] = (),
        lasts: tuple[float, float] = (0.2, 8.0),
        forever: float = 0.0,
    ) -> FaultPlan:
        """`count` faults within `horizon` seconds; with `phases`, half of them strike within one.

        `forever` is the probability that a killed peer stays dead; every other fault is undone.
        """
        return cls([_draw(rng, peers, horizon, kinds, phases, lasts, forever) for _ in range(count)])

    def arm(self, world: World[Any]) -> None:
        """Let the faults happen in `world`."""
        waiting: list[Fault] = []
        for fault in self.faults:
            if isinstance(fault.when, At):
                assert fault.victim is not None, "a fault at a time needs a victim"
                world.at(fault.when.time, _striker(world, fault.victim, fault))
            else:
                waiting.append(fault)
        if waiting:
            world.watchers.append(_Watch(world, waiting))

    def __repr__(self) -> str:
        return "\n".join(["FaultPlan(", *(f"  {fault}" for fault in self.faults), ")"])


class _Watch:
    """Counts events by phase and strikes when a fault's moment has come."""

    def __init__(self, world: World[Any], waiting: list[Fault]) -> None:
        self._world = world
        self._waiting = waiting
        self._seen: dict[tuple[PeerId | None, str], int] = {}

    def __call__(self, peer: PeerId) -> None:
        if not self._waiting or not self._world.is_alive(peer):
            return
        phase = self._world.node(peer).phase()
        for key in ((peer, phase), (None, phase)):
            self._seen[key] = self._seen.get(key, 0) + 1
        due = [fault for fault in self._waiting if self._is_due(fault, peer, phase)]
        self._waiting = [fault for fault in self._waiting if fault not in due]
        for fault in due:  # a fault may be an event itself, and bring us here again
            _striker(self._world, peer, fault)()

    def _is_due(self, fault: Fault, peer: PeerId, phase: str) -> bool:
        assert isinstance(fault.when, During)
        if fault.when.phase != phase or fault.victim not in (None, peer):
            return False
        return self._seen[fault.victim, phase] >= fault.when.event


def _striker(world: World[Any], victim: PeerId, fault: Fault) -> Undo:
    def strike() -> None:
        if not world.is_alive(victim):
            return
        aimed = dataclasses.replace(fault, others=tuple(peer for peer in fault.others if peer != victim))
        world.faults[fault.kind, world.node(victim).phase()] += 1
        undo = KINDS[fault.kind](world, victim, aimed)
        if fault.lasts:
            world.at(world.now + fault.lasts, undo)

    return strike


def _draw(
    rng: random.Random,
    peers: Sequence[PeerId],
    horizon: float,
    kinds: Sequence[str],
    phases: Sequence[str],
    lasts: tuple[float, float],
    forever: float,
) -> Fault:
    kind = rng.choice(kinds)
    victim = rng.choice(peers)
    rest = [peer for peer in peers if peer != victim]
    most = max(1, len(rest) // 2) if kind in ("partition", "cut") else 1
    within_phase = bool(phases) and rng.random() < 0.5
    when = During(rng.choice(phases), rng.randint(1, 200)) if within_phase else At(rng.uniform(0.0, horizon))
    stays_dead = kind == "kill" and rng.random() < forever
    return Fault(
        kind=kind,
        when=when,
        victim=None if within_phase else victim,
        others=tuple(rng.sample(rest, min(len(rest), rng.randint(1, most)))),
        lasts=0.0 if stays_dead else rng.uniform(*lasts),
        amount=rng.uniform(0.01, 0.3) if kind == "loss" else float(rng.choice((0, 0, 1, 2, 3))),
    )

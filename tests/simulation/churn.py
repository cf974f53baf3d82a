"""Draws from a seed what a swarm looks like, which members join and leave, and now and then a power cut."""

from __future__ import annotations

import random
from functools import partial
from itertools import combinations

from shoal.protocol.base.ids import PeerId
from tests.simulation.disks import DAMAGES, Damage, Disk, copy_of, lose_power
from tests.simulation.faults import start_again
from tests.simulation.oracle import Oracle
from tests.simulation.swarm import Peer, Shape
from tests.simulation.world import World

GOING = 4.5  # seconds that who leaves waits for that to be decided
SEEDS = 3  # members by whom a peer finds the others
SAFE = 3  # voters, of whom one may lose its vote
SMALLEST_LEAVE = 4  # the smallest swarm that somebody leaves


def draw_shape(rng: random.Random, names: list[PeerId]) -> Shape:
    """Some swarms have keepers, members that cannot be dialled, or a minimum size that one death can break."""
    count = len(names)
    keepers = rng.sample(names, rng.randint(1, (count + 1) // 3)) if count > 2 and rng.random() < 0.25 else []
    hides = rng.random() < 0.25 and count > 1  # alone it would be found by nobody
    unreachable = rng.sample(names, rng.randint(1, max(1, (count + 1) // 3))) if hides else []
    if set(names[:SEEDS]) <= set(unreachable):  # nor would those be by whom the others are to find it
        unreachable.remove(names[0])
    min_members = rng.choice((min(2, count), count // 2 + 1, max(1, count - 1), count)) if rng.random() < 0.25 else 1
    return Shape(
        min_members=min_members,
        start_members=count,
        unreachable=tuple(unreachable),
        keepers=tuple(keepers),
    )


def draw_apart(rng: random.Random, names: list[PeerId]) -> tuple[tuple[PeerId, PeerId], ...]:
    """Pairs that cannot connect directly: in some swarms those of some members, in some one member and all others."""
    if rng.random() < 0.6:
        return ()
    some = rng.sample(names, rng.randint(1, len(names)))
    pairs = combinations(some, 2) if rng.random() < 0.5 else ((some[0], other) for other in names if other != some[0])
    return tuple(pairs)


class Churn:
    """Members of one world that join, leave or lose power."""

    def __init__(self, world: World[Peer], oracle: Oracle, rng: random.Random) -> None:
        self._world = world
        self._oracle = oracle
        self._rng = rng
        self._copied: Disk = {}
        self.told: list[str] = []

    def draw(self, names: list[PeerId], newcomers: list[PeerId], until: float) -> None:
        """Schedule the newcomers, perhaps a member that leaves, and perhaps a power cut that strikes several."""
        for name in newcomers:
            self._at(self._rng.uniform(2.0, until), f"{name} joins", partial(self._world.start, name))
        if len(names) >= SMALLEST_LEAVE and self._rng.random() < 0.3:
            name = self._rng.choice(names)
            self._at(self._rng.uniform(4.0, until), f"{name} leaves", partial(self._leave, name))
        if self._rng.random() < 0.15:
            struck = self._rng.sample(names, (len(names) + 1) // 3)
            cut = partial(self._power_cut, struck, self._rng.uniform(0.5, 5.0))
            self._at(self._rng.uniform(4.0, until), f"{', '.join(struck)} lose power", cut)

    def draw_damage(self, rng: random.Random, names: list[PeerId], until: float) -> None:
        """Schedule that a disk is damaged while its peer is down; of who has no vote it may be an old copy."""
        victim, damage = rng.choice(names), rng.choice(DAMAGES)
        keepers = [name for name in names[1:] if name in self._world.node(name).shape.keepers]  # the founder votes
        if keepers and rng.random() < 0.5:
            self._at(rng.uniform(2.0, until / 2), f"{keepers[0]} is copied", partial(self._copy, keepers[0]))
            victim, damage = keepers[0], self._put_back
        begin, lasts = rng.uniform(until / 2, until), rng.uniform(0.5, 8.0)
        self._at(begin, f"{victim} suffers {damage.__name__}", partial(self._damage, victim, damage, rng, lasts))

    def _damage(self, victim: PeerId, damage: Damage, rng: random.Random, lasts: float) -> None:
        """Of two voters none may lose its vote: nothing can be decided then."""
        if self._world.is_alive(victim):
            voters = self._world.node(victim).member.log.register.voters
            if victim in voters and len(voters) < SAFE:
                return
            self._world.kill(victim)
            damage(self._world.disks[victim], rng)
            self._world.at(self._world.now + lasts, partial(start_again, self._world, victim))

    def _copy(self, peer: PeerId) -> None:
        self._copied = copy_of(self._world.disks[peer])

    def _put_back(self, disk: Disk, rng: random.Random) -> None:
        disk.clear()
        disk.update(self._copied)

    def _at(self, time: float, what: str, action: partial[None]) -> None:
        self._world.at(time, action)
        self.told.append(f"{what} at {time:.3f}")

    def _leave(self, name: PeerId) -> None:
        """Ask for that, and go when it is decided, or after a while with the vote."""
        world, oracle = self._world, self._oracle
        if not world.is_alive(name) or world.is_paused(name):
            return
        node = world.node(name)

        def end() -> None:
            if world.is_alive(name) and world.node(name) is node:
                if node.has_parted:
                    oracle.left.append(name)
                world.kill(name)

        def look(peer: PeerId) -> None:
            if peer == name and node.has_parted:
                world.at(world.now, end)
                world.watchers.remove(look)

        world.watchers.append(look)
        world.command(name, lambda node, now: node.stop(now))
        world.at(world.now + GOING, end)

    def _power_cut(self, struck: list[PeerId], lasts: float) -> None:
        """Kill several at the same instant; they come back one by one."""
        for turn, name in enumerate(struck):
            if self._world.is_alive(name):
                self._world.kill(name)
                lose_power(self._world.disks[name], self._rng)
                self._world.at(self._world.now + lasts + turn / 7, partial(start_again, self._world, name))

"""A swarm of members: nodes that run the membership core alone and note what it tells them."""

from __future__ import annotations

import random

from shoal.protocol.base.effects import Effect, Event, Timer
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.membership import Membership
from shoal.protocol.messages.membership import RunStatus
from tests.simulation.links import WAN, Link
from tests.simulation.node import Node
from tests.simulation.signing import FakeSigner
from tests.simulation.world import Disk, World


def status(round: int = 0, step: int = 0) -> RunStatus:
    """A plausible status."""
    return RunStatus(round, NO_DIGEST, NO_DIGEST, "training", step, 0, None, True, 0, 0, "public")


class MemberNode(Node):
    """A process that runs membership alone."""

    def __init__(self, peer: PeerId, seeds: list[PeerId], rng: random.Random) -> None:
        addresses = (f"/dns4/{peer}/tcp/4101",)
        self.membership = Membership(peer, addresses, status(), FakeSigner(peer), rng)
        self.told: list[Event] = []
        self._seeds = seeds

    def start(self, now: float) -> list[Effect]:
        return self.membership.start(now, self._seeds)

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        return self.membership.receive(now, sender, message)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        return self.membership.fire(now, timer)

    def on_event(self, now: float, event: Event) -> list[Effect]:
        self.told.append(event)
        return []

    def on_link_up(self, now: float, peer: PeerId) -> list[Effect]:
        return self.membership.link_up(now, peer)

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self.membership.doubt(now, peer)

    def accuse(self, now: float, peer: PeerId) -> list[Effect]:
        return self.membership.doubt(now, peer)

    def phase(self) -> str:
        return "member"


Swarm = World[MemberNode]


def names(count: int) -> list[PeerId]:
    """PeerIDs for a swarm."""
    return [PeerId(f"peer-{index:03d}") for index in range(count)]


STRANGER = PeerId("peer-stranger")  # knows no seeds


def start_swarm(count: int, seed: int, link: Link = WAN, *, unnoticed: float = 0.0, seeds: int = 2) -> Swarm:
    """`count` members, started together, that know the first `seeds` of them."""
    peers = names(count)

    def make(peer: PeerId, now: float, disk: Disk, rng: random.Random) -> MemberNode:
        return MemberNode(peer, [] if peer == STRANGER else peers[:seeds], rng)

    world = World(make, seed, link, unnoticed=unnoticed)
    for peer in peers:
        world.start(peer)
    return world


def settled_swarm(count: int, seed: int, link: Link = WAN, *, unnoticed: float = 0.0) -> Swarm:
    """A swarm in which everybody knows everybody."""
    world = start_swarm(count, seed, link, unnoticed=unnoticed)
    world.run_until(lambda: agree(world), within=30.0)
    return world


def agree(world: Swarm) -> bool:
    """Whether every living node sees exactly the living, and suspects nobody."""
    living = sorted(world.living())
    for peer in living:
        membership = world.node(peer).membership
        if membership.alive() != [other for other in living if other != peer]:
            return False
        if any(membership.is_suspect(other) for other in membership.alive()):
            return False
    return True


def told(world: Swarm, kind: type[Event]) -> list[Event]:
    """All events of this kind that the living were told."""
    return [event for node in world.nodes() for event in node.told if type(event) is kind]


def let_rest(world: Swarm, may_rest: bool) -> None:
    """Tell all memberships whether their owners are outside of a round, so that probing may rest."""
    for peer in world.living():
        world.command(peer, lambda node, now: node.membership.probing.let_rest(now, may_rest))

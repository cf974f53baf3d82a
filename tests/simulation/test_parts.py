"""Two parts of a run in flight at once: two chains of rounds over one membership that never touch each other.

A run has one part yet, but every message, timer and record names its part; here two `Rounds` share a peer, each with
its own chunks, pace and history, and one peer dies in the middle.
"""

from __future__ import annotations

import random

import msgpack
import pytest

from shoal.protocol.base.effects import Effect, Event, Timer, Wake
from shoal.protocol.base.ids import Digest, PeerId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.member.member import part_of
from shoal.protocol.membership.members import PeerDown, PeerUp
from shoal.protocol.membership.membership import Membership
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES
from shoal.protocol.rounds.agreement.certificate import genesis
from shoal.protocol.rounds.agreement.roster import Base, Offer, Policy
from shoal.protocol.rounds.matchmaking.milestones import Committed
from shoal.protocol.rounds.rounds import Rounds
from tests.simulation.facts import FactReducer
from tests.simulation.ledger import RUN
from tests.simulation.links import Link
from tests.simulation.members import status
from tests.simulation.node import Node
from tests.simulation.seeds import seeds
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import peers_named
from tests.simulation.world import Disk, World

NAMES = peers_named(4)
CHUNKS = (3, 5)  # of each part
PACE = (0.7, 1.3)  # seconds of training


class Fragments(Node):
    """A peer with two fragments of a model."""

    def __init__(self, me: PeerId, disk: Disk, rng: random.Random) -> None:
        self.me = me
        self.membership = Membership(me, (), status(), FakeSigner(me), rng)
        self.parts = [self._rounds(part) for part in range(2)]
        self.states: list[list[bytes]] = [[b""], [b""]]  # by part, by round

    def _rounds(self, part: int) -> Rounds:
        policy = Policy(2, 4, 64, 1000, (CHUNKS[part],))
        return Rounds(self.me, part, FakeSigner(self.me), self.membership, policy, lambda _: FactReducer())

    def start(self, now: float) -> list[Effect]:
        effects = self.membership.start(now, NAMES[:2])
        for part, rounds in enumerate(self.parts):
            effects += rounds.open(now, Base(0, genesis(RUN, part), Digest(bytes(32)), (NAMES[0],)))
            effects.append(Wake(PACE[part], Timer("app", "trained", 0, str(part))))
        return effects

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self.membership.receive(now, sender, message)
        return self.parts[part_of(message)].receive(now, sender, message)  # type: ignore[arg-type]

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        if timer.core == "membership":
            return self.membership.fire(now, timer)
        part = int(timer.subject)
        if timer.core == "app":
            return self._act(now, timer.name, part)
        return self.parts[part].fire(now, timer)

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        self.parts[part_of(message)].left(now, to, message, sent)  # type: ignore[arg-type]

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self.membership.link_lost(now, peer)

    def on_event(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp(peer=peer):
                return [effect for rounds in self.parts for effect in rounds.peer_up(now, peer)]
            case PeerDown(peer=peer):
                return [effect for rounds in self.parts for effect in rounds.peer_down(now, peer)]
            case Committed(decision=decision):
                part = decision.certificate.proposal.part
                self.states[part].append(content_hash(self.states[part][-1] + b"".join(decision.payloads)))
                return [Wake(0.01, Timer("app", "applied", 0, str(part)))]
        return []

    def _act(self, now: float, name: str, part: int) -> list[Effect]:
        rounds = self.parts[part]
        if name == "applied":
            root = Digest(self.states[part][-1])
            return [*rounds.applied(now, root), Wake(PACE[part], Timer("app", "trained", 0, str(part)))]
        number = rounds.base.round + 1 if rounds.base is not None else 0
        return rounds.submit(now, Offer(10), lambda chunk: self._encode(part, number, chunk))

    def _encode(self, part: int, number: int, chunk: int) -> bytes:
        packed: bytes = msgpack.packb([self.me, number, part, chunk, 1.0])
        return packed

    def phase(self) -> str:
        return self.parts[0].phase


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_two_chains_of_rounds_do_not_touch_each_other(seed: int) -> None:
    def make(peer: PeerId, now: float, disk: Disk, rng: random.Random) -> Fragments:
        return Fragments(peer, disk, rng)

    world = World(make, seed, Link(0.01, 0.05, duplicate=0.05))
    for name in NAMES:
        world.start(name)
    world.run_until(lambda: all(len(node.states[1]) > 3 for node in world.nodes()), within=60.0)
    world.kill(NAMES[1 + seed % 3])
    world.run_until(lambda: all(len(state) > 12 for node in world.nodes() for state in node.states), within=60.0)
    records = {name for disk in world.disks.values() for name in disk}
    assert records == {"vote-0", "vote-1"}
    for part in range(2):
        chains = [node.states[part][:12] for node in world.nodes()]
        assert chains.count(chains[0]) == len(chains)
        facts = _facts(world, part)
        assert {fact[2] for fact in facts} == {part}
    assert not world.errors


def _facts(world: World[Fragments], part: int) -> list[list[int]]:
    """The facts in the last decided rounds of a part."""
    shelves = [node.parts[part].shelf for node in world.nodes()]
    decisions = [shelf.decision(round) for shelf in shelves for round in range(1, 100)]
    payloads = [payload for decision in decisions if decision is not None for payload in decision.payloads]
    return [fact for payload in payloads for fact in msgpack.unpackb(payload)[0]]

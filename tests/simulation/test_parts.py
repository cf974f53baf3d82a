"""Two parts of a run in flight at once: two chains of rounds over one log and one membership, which never touch.

A run has one part yet, but every message, timer, record and entry of rounds names its part. Here two `Rounds` share a
peer, each with its own chunks, pace and history; and one peer dies in the middle.
"""

from __future__ import annotations

import random

import msgpack
import pytest

from shoal.protocol.averaging.events import Committed, Doubted, Due, LogEnds, Lost, Reviewed, Want
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.effects import Effect, Event, Timer, Wake
from shoal.protocol.base.ids import Digest, PeerId, content_hash, digest
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.log.core import Core, EntryDecided
from shoal.protocol.log.keeper import Keeper, ResultProposed
from shoal.protocol.log.register import Rules, body_of, first_state, founded, voters_root
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.membership.members import PeerDown, PeerUp
from shoal.protocol.membership.membership import Membership
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES, Contribution
from shoal.protocol.messages.log import Register, VoteFile
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES
from tests.simulation.facts import FactReducer
from tests.simulation.links import Link
from tests.simulation.log_worlds import Endless
from tests.simulation.members import status
from tests.simulation.node import Node
from tests.simulation.seeds import seeds
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import BRANCH, peers_named
from tests.simulation.world import World

NAMES = peers_named(4)
CHUNKS = (3, 5)  # of each part
PACE = (0.7, 1.3)  # seconds of training
SOON = 60.0  # virtual seconds


def founding() -> Register:
    """Both parts begin with states of their own."""
    parts = tuple(first_state(part, 0, root_of(part, b"")) for part in range(2))
    return founded(BRANCH, NAMES[0], 1, rounds_to_vote=1, parts=parts, part_count=len(parts))


def root_of(part: int, state: bytes) -> Digest:
    return digest("a part's state", bytes([part]), state)


class Fragments(Node):
    """A peer with two fragments of a model."""

    def __init__(self, me: PeerId, rng: random.Random) -> None:
        self.me, signer, first = me, FakeSigner(me), founding()
        self.membership = Membership(me, (), status(), signer, rng)
        votes = VoteFile(1, voters_root(first), 0, 0, None, None)
        core = Core.resume(me, first, (), votes, Rules(Crash(), signer))
        self.log = Keeper(core, self.membership, first, Shortcuts(first, START, first), Endless())
        self.parts = [self._rounds(part, signer) for part in range(2)]
        self.states: list[list[bytes]] = [[b""], [b""]]  # by part, by round
        self.submitted: list[list[bytes]] = [[], []]  # by part, by chunk

    def _rounds(self, part: int, signer: FakeSigner) -> Rounds:
        us = Self(self.me, lambda: (BRANCH,), part, signer, lambda: self.log.core.life)
        policy = Policy(1, len(NAMES), 64, 1000, (CHUNKS[part],))
        return Rounds(us, self.membership, policy, self.log, lambda _: FactReducer())

    def start(self, now: float) -> list[Effect]:
        effects = [*self.membership.start(now, NAMES[:2]), *self.log.start()]
        for part, rounds in enumerate(self.parts):
            state = self.log.register.parts[part]
            effects += rounds.open(now, Base(0, 0, state.history, state.root))
            effects.append(Wake(PACE[part], Timer("app", "trained", 1, str(part))))
        return effects

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if isinstance(message, MEMBERSHIP_MESSAGES):
            return self.membership.receive(now, sender, message)
        if isinstance(message, AVERAGING_MESSAGES):
            return self.parts[message.part].receive(now, sender, message)
        return self.log.receive(sender, message)  # type: ignore[arg-type]

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        if timer.core == "membership":
            return self.membership.fire(now, timer)
        if timer.core == "log":
            return self.log.fire(now, timer)
        part = int(timer.subject)
        rounds = self.parts[part]
        match timer.name:
            case "trained":
                return self._submit(now, part)
            case "kept":
                return rounds.kept(now, timer.token)
            case "applied":
                applied = rounds.applied(now, root_of(part, self.states[part][timer.token]))
                return [*applied, Wake(PACE[part], Timer("app", "trained", timer.token + 1, timer.subject))]
        return rounds.fire(now, timer)

    def _submit(self, now: float, part: int) -> list[Effect]:
        base = self.parts[part].base
        assert base is not None
        facts = [[self.me, base.round + 1, base.root, chunk, float(part)] for chunk in range(CHUNKS[part])]
        self.submitted[part] = [msgpack.packb(fact) for fact in facts]
        return self.parts[part].submit(now, Ready(1 + part), self.submitted[part].__getitem__)

    def payload_of(self, message: Message) -> Payload:
        assert isinstance(message, Contribution)
        return self.submitted[message.part][message.chunk]

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        if isinstance(message, AVERAGING_MESSAGES):
            self.parts[message.part].left(now, to, message, sent)

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self.membership.doubt(now, peer)

    def on_event(self, now: float, event: Event) -> list[Effect]:
        match event:
            case PeerUp(peer=peer):
                return [*self.log.peer_up(peer), *(each for rounds in self.parts for each in rounds.look(now))]
            case PeerDown(peer=peer):
                lost = [each for rounds in self.parts for each in rounds.peer_down(now, peer)]
                return [*self.log.peer_down(peer), *lost]
            case Want(body):
                return self.log.want(body)
            case Due():
                return self.log.expect()
            case Reviewed(entry, is_approved):
                return self.log.answer(entry, is_approved)
            case LogEnds(peer, number):
                return self.log.heard_end(peer, number)
            case Doubted(peer):
                return self.membership.doubt(now, peer)
            case Lost(number):
                return self.log.lacks(number)
            case ResultProposed(name, result, is_bound):
                return self.parts[result.part].review(now, name, result, is_bound)
            case EntryDecided(decided, before):
                body = body_of(decided.body)
                told = [rounds.committed(now, decided.number, body, before) for rounds in self.parts]
                return [each for effects in told for each in effects]
            case Committed(decision=decision):
                part, round = decision.result.part, decision.round
                assert len(self.states[part]) == round, "rounds are applied in order"
                for payload in decision.payloads:
                    facts, _ = msgpack.unpackb(payload)
                    assert {(fact[1], fact[2], fact[4]) for fact in facts} == {
                        (round, decision.result.base_root, float(part))
                    }, "what is of another part or round is in the mean"
                self.states[part].append(content_hash(self.states[part][-1] + b"".join(decision.payloads)))
                timers = (Timer("app", name, round, str(part)) for name in ("applied", "kept"))
                return [Wake(0.01 * turn, timer) for turn, timer in enumerate(timers, 1)]
        return []

    @property
    def rounds(self) -> int:
        """How far the part is that is further behind."""
        return min(len(states) - 1 for states in self.states)


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_two_parts_go_on_side_by_side_whoever_dies(seed: int) -> None:
    link = Link(delay=0.01, jitter=0.05)
    world = World(lambda me, now, disk, rng: Fragments(me, rng), seed, link)
    for name in NAMES:
        world.start(name)
    both: list[float] = []  # when two rounds were under way at once

    def look(peer: PeerId) -> None:
        rounds = [each.round for each in world.node(peer).parts]
        if all(each is not None and each.exchange.is_under_way for each in rounds):
            both.append(world.now)

    world.watchers.append(look)
    world.run_until(lambda: bool(both) and all(node.rounds >= 3 for node in world.nodes()), within=SOON)
    world.watchers.append(lambda peer: world.kill(NAMES[seed % 4]) if both[-1] == world.now else None)
    goal = 3 + max(node.rounds for node in world.nodes())
    world.run_until(
        lambda: len(world.living()) == 3 and all(node.rounds >= goal for node in world.nodes()), within=SOON
    )
    assert not world.errors
    for part in range(2):
        seen = [node.states[part] for node in world.nodes()]
        shortest = min(map(len, seen))
        assert all(states[:shortest] == seen[0][:shortest] for states in seen), f"part {part} differs"
    lengths = [len(states) for states in next(iter(world.nodes())).states]
    assert lengths[0] > lengths[1], "each goes at its own pace"

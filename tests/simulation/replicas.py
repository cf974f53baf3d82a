"""A simulated swarm of replicas: `ReplicaMember` as it is in production, names for vectors, and an oracle beside it.

A contribution is a list of chunks that say whose they are, of which life and which round; what is told must be one that
was submitted, so a mixture of two, or one of another round, is seen at once. What the last round brings must be made of
what was submitted to it, and the same for all.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from shoal.protocol.averaging import events as told
from shoal.protocol.averaging.events import Committed, HandIn, Waiting
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.base.effects import Blamed, Effect, Event, Timer, Wake
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import Digest, PeerId, content_hash, digest
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.member.facts import FOUNDING_LIFE, RunFacts
from shoal.protocol.member.presence import Parted
from shoal.protocol.messages.averaging import Contribution
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.replicas.events import Exchanged, Lapse, Lapsed, Met, ReplicaReceived
from shoal.protocol.replicas.facts import ReplicaFacts
from shoal.protocol.replicas.member import ReplicaMember
from tests.simulation.facts import FactReducer
from tests.simulation.journals import means_on, put_record, recalled
from tests.simulation.links import LAN, Link
from tests.simulation.node import Node
from tests.simulation.promises import Violation
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import peers_named
from tests.simulation.versions import LAYOUT, Versions, root_of
from tests.simulation.world import World

HISTORY = digest("history of a simulated run of replicas")
BRANCH = digest("log of a simulated run of replicas")
STATE_CHUNKS = 5
ABSURD = b"not a number"  # as a chunk of a replica
TRAINING = 2.0  # virtual seconds of inner steps


@dataclass(frozen=True)
class Shape:
    """What the swarm looks like."""

    chunks: int = 4
    start_members: int = 1
    min_members: int = 1
    slack: float = 0.0
    last: int = 1_000_000
    window: int = 8
    keepers: tuple[PeerId, ...] = ()  # do not train
    slow: tuple[tuple[PeerId, float], ...] = ()  # (member, how many times longer its inner steps take)
    joiners: tuple[PeerId, ...] = ()  # do not hold what the run begins with
    wedged: tuple[PeerId, ...] = ()  # never hand in, even when they are called
    uplinks: tuple[tuple[PeerId, float], ...] = ()  # (member, bytes a second): its payloads leave one after the other
    continue_after: float | None = None  # see RunFacts


def check(chunk: int, payload: Payload) -> None:
    """PayloadError for all that a real run would refuse: what is no payload of this chunk."""
    try:
        facts = msgpack.unpackb(payload)
        is_right = isinstance(facts, list) and facts[3] == chunk
    except ValueError:
        is_right = False
    if not is_right:
        raise PayloadError("it is no chunk of a contribution")


def check_state(chunk: int, payload: Payload) -> None:
    """PayloadError for a chunk of a replica with which nobody could go on; its donor may sign anything."""
    if bytes(payload) == ABSURD:
        raise PayloadError("numbers with which no replica can go on")


class Oracle:
    """Checks all that members are told against all that was submitted."""

    def __init__(self) -> None:
        self.submitted: dict[tuple[PeerId, int], list[list[bytes]]] = defaultdict(list)
        self.exchanged: dict[tuple[PeerId, int, int], Exchanged] = {}  # by peer, life and round
        self.lapsed: dict[tuple[PeerId, int, int], Lapse] = {}
        self.replicas: dict[tuple[PeerId, int], list[Digest]] = defaultdict(list)  # roots that a peer stood on
        self.lapses: Counter[Lapse] = Counter()
        self.copies: list[tuple[PeerId, ReplicaReceived]] = []
        self.results: dict[Digest, Committed] = {}  # of the last round, on each branch of the log

    def told(self, peer: PeerId, life: int, standing: int, event: Exchanged | Lapsed, reach: int | None) -> None:
        """`peer`, whose replica is that of round `standing`, is told how a round ends.

        `reach`: how many rounds it may pass over; None: any number, as what it holds is a fresh copy.
        """
        key = (peer, life, event.round)
        if key in self.exchanged or key in self.lapsed:
            raise Violation("At most once", f"{peer} is told of round {event.round} twice")
        if isinstance(event, Lapsed):
            if event.round <= standing or (event.round > standing + 1 and event.reason is not Lapse.BEHIND):
                raise Violation("Fencing", f"{peer} at round {standing} is told that round {event.round} lapses")
            self._check_leap(peer, standing, event, reach)
            self.lapsed[key] = event.reason
            self.lapses[event.reason] += 1
            return
        if event.round != standing + 1:
            raise Violation("Fencing", f"{peer} at round {standing} is told of an exchange in round {event.round}")
        if [bytes(each) for each in event.payloads] not in self.submitted[event.partner, event.round]:
            raise Violation("Whole or nothing", f"{event.partner} never contributed this to round {event.round}")
        self.exchanged[key] = event

    def concluded(self, peer: PeerId, branch: Digest, event: Committed) -> None:
        """`peer` is told what the last round has brought."""
        known = self.results.setdefault(branch, event).decision
        if list(known.payloads) != list(event.decision.payloads):
            raise Violation("One final model", f"{peer} ends with another result than others")
        offered = {payload for each in self.submitted.values() for payloads in each for payload in payloads}
        for chunk in event.decision.payloads:
            for facts in msgpack.unpackb(chunk)[0]:
                if msgpack.packb(facts[:-1]) not in offered:  # the last one is its weight
                    raise Violation("One final model", f"{peer} ends with what nobody has submitted")

    def _check_leap(self, peer: PeerId, standing: int, event: Lapsed, reach: int | None) -> None:
        if event.reason is not Lapse.BEHIND:
            return
        if reach is not None and event.round - standing > reach:
            raise Violation("Fencing", f"{peer} at round {standing} leaps to {event.round}, and should have copied")
        if event.round > max(round for _, round in self.replicas):
            raise Violation("Fencing", f"{peer} leaps to round {event.round}, on which nobody has stood")

    def partners(self, round: int) -> dict[PeerId, PeerId]:
        """The members that were told of an exchange in `round`, with their partners; of several lives, the last."""
        return {peer: event.partner for (peer, _, number), event in self.exchanged.items() if number == round}

    def count_one_sided(self) -> int:
        """Exchanges of which only one of the two members was told."""
        told = self.exchanged.items()
        return sum(self.partners(round).get(event.partner) != peer for (peer, _, round), event in told)


class Replica(Node):
    """One process: a member, a worker that trains for a while, and a replica of its own."""

    def __init__(
        self,
        me: PeerId,
        seeds: Sequence[PeerId],
        disk: dict[str, Any],
        rng: random.Random,
        oracle: Oracle,
        shape: Shape,
        life: int,
    ) -> None:
        self.me = me
        self._seeds = [peer for peer in seeds if peer != me][:3]
        self._rng = rng
        self._oracle = oracle
        self.shape = shape
        self.life = life
        holds = me not in shape.joiners and life == 0
        self.standing = 0 if holds else -1
        self.state = [b"initial %d" % chunk for chunk in range(STATE_CHUNKS)]
        self.store = Versions({0: list(self.state)} if holds else {}, disk=disk.setdefault("download", {}))
        policy = Policy(shape.min_members, shape.start_members, 64, 1 << 30, (shape.chunks,), slack=shape.slack)
        origin = Base(0, 0, HISTORY, root_of(self.state))
        run = RunFacts(
            BRANCH, seeds[0], origin, policy, shape.last, continue_after=shape.continue_after, has_replicas=True
        )
        facts = ReplicaFacts(
            run=run,
            seed=b"simulated",
            chunks=shape.chunks,
            check=check,
            layout=LAYOUT,
            state_chunks=STATE_CHUNKS,
            check_state=check_state,
            window=shape.window,
        )
        trains, signer = me not in shape.keepers, FakeSigner(me)
        past = recalled(disk, run, signer, lambda: FOUNDING_LIFE + life + (me != run.founder))
        past.keep_means(origin if holds else None, means_on(disk))
        self.member = ReplicaMember(
            me,
            (),
            facts,
            past,
            origin if holds else None,
            signer,
            lambda _: FactReducer(),
            self.store,
            rng,
            trains=trains,
        )
        self._training_for = -1
        self._token = 0
        self._submitted: tuple[int, list[bytes]] = (0, [])  # a round, and the chunks that we exchange in it
        self._outcome: Exchanged | Lapsed | Committed | told.Lapsed | None = None
        self._is_fresh = False  # whether our replica is a copy, with which no round has ended yet
        self.has_parted = False
        self.blamed: list[Blamed] = []
        self.waits: list[str] = []
        self.met: list[Met] = []
        self.called: list[int] = []
        if holds:
            self._holds(0)

    # -- the world's hooks ----------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        return self._train_if_open(self.member.start(now, self._seeds))

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        return self._train_if_open(self.member.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        if timer.core != "app":
            return self._train_if_open(self.member.fire(now, timer))
        if timer.name == "apply":
            return self._apply(now)
        if timer.name == "kept":
            return self._train_if_open(self.member.kept(now, timer.token))
        if timer.name == "install":
            return self._train_if_open(self.member.opened(now, self.standing, root_of(self.state)))
        return self._submit(now) if timer.token == self._token else []

    def on_link_up(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_up(now, peer))

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_lost(now, peer))

    def persist(self, disk: dict[str, Any], name: str, record: Message) -> None:
        put_record(disk, name, record, self.member.log.core)

    def payload_of(self, message: Message) -> Payload:
        if isinstance(message, StateChunk):
            return self.store.chunk(message.round, message.index)
        round, payloads = self._submitted
        assert isinstance(message, Chunk | Contribution)
        assert message.round == round
        return payloads[message.chunk]

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        self.member.left(now, to, message, sent)

    def accuse(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member._digest(now, self.member.exchanges.peer_down(now, peer)))

    def stop(self, now: float) -> list[Effect]:
        """End, as a service that is stopped."""
        return self._train_if_open(self.member.stop(now))

    def phase(self) -> str:
        return self.member.phase

    def members(self) -> list[PeerId]:
        """Who is a member of the run, as far as this process knows."""
        return [member.peer for member in self.member.log.register.members]

    def on_event(self, now: float, event: Event) -> list[Effect]:
        match event:
            case Exchanged() | Lapsed():
                reach = None if self._is_fresh else self.shape.window
                self._oracle.told(self.me, self.life, self.standing, event, reach)
                self._outcome = event
                return [Wake(self._rng.uniform(0.0, 0.05), Timer("app", "apply", 0))]
            case Committed():
                self._oracle.concluded(self.me, self.member.log.register.branch, event)
                self._outcome = event
                kept = Timer("app", "kept", event.decision.round)
                return [Wake(self._rng.uniform(0.0, 0.05), Timer("app", "apply", 0)), Wake(0.1, kept)]
            case told.Lapsed():
                self._outcome = event
                return [Wake(0.0, Timer("app", "apply", 0))]
            case ReplicaReceived():
                return self._install(event)
            case HandIn(round=round):
                self.called.append(round)
                if round == self._training_for and self.me not in self.shape.wedged:
                    return self._submit(now)
            case Waiting():
                self.waits.append(event.reason)
            case Met():
                if event.partner not in self.members():
                    raise Violation("Only members", f"{self.me} exchanges with {event.partner}, which is none")
                self.met.append(event)
            case Blamed():
                self.blamed.append(event)
            case Parted():
                self.has_parted = True
        return []

    # -- the worker -----------------------------------------------------------------------------------------

    def _train_if_open(self, effects: list[Effect]) -> list[Effect]:
        base = self.member.base_round
        if base is None or self.me in self.shape.keepers or base + 1 == self._training_for:
            return effects
        if base != self.standing:
            raise Violation("Fencing", f"{self.me} is in the round after {base}, and its replica at {self.standing}")
        self._training_for = base + 1
        self._token += 1
        if self._training_for > self.shape.last or self.me in self.shape.wedged:
            return effects
        took = self._rng.uniform(0.5, 1.0) * TRAINING * dict(self.shape.slow).get(self.me, 1.0)
        return [*effects, Wake(took, Timer("app", "trained", self._token))]

    def _submit(self, now: float) -> list[Effect]:
        base = self.member.base_round
        is_asked = self.member.phase in ("training", "syncing")  # while a replica is copied, ours may still be good
        if base is None or not is_asked or base + 1 != self._training_for:
            return []
        self._token += 1
        chunks = range(self.shape.chunks)
        name = [self.me, self.life, base + 1]
        payloads = [bytes(msgpack.packb([*name, chunk, self._rng.random()])) for chunk in chunks]
        self._submitted = base + 1, payloads
        self._oracle.submitted[self.me, base + 1].append(payloads)
        if base + 1 == self.shape.last:
            return self._train_if_open(self.member.submit_last(now, Ready(1), payloads.__getitem__))
        return self._train_if_open(self.member.submit(now))

    def _apply(self, now: float) -> list[Effect]:
        outcome, self._outcome, self._is_fresh = self._outcome, None, False
        if outcome is None:
            return []
        if isinstance(outcome, Committed | told.Lapsed):
            return self._conclude(now, outcome)
        if isinstance(outcome, Exchanged):
            made = b"".join(bytes(each) for each in outcome.payloads)
            self.state = [content_hash(old + made) for old in self.state]
        self.standing = outcome.round
        self.store.add(outcome.round, list(self.state))
        self._holds(outcome.round)
        return self._train_if_open(self.member.applied(now, root_of(self.state)))

    def _conclude(self, now: float, outcome: Committed | told.Lapsed) -> list[Effect]:
        if isinstance(outcome, Committed):
            self.state = [content_hash(b"".join(map(bytes, outcome.decision.payloads)))] * STATE_CHUNKS
        self.standing = self.shape.last
        self.store.add(self.standing, list(self.state))
        return self._train_if_open(self.member.concluded(now, root_of(self.state)))

    def _install(self, event: ReplicaReceived) -> list[Effect]:
        self._oracle.copies.append((self.me, event))
        copied = self.store.take()
        if (root := root_of(copied)) != event.root:
            raise Violation("Whole or nothing", f"{self.me} copied a replica that is not what its donor signed")
        if root not in self._oracle.replicas[event.donor, event.round]:
            raise Violation("Whole or nothing", f"{self.me} copied what {event.donor} never was at {event.round}")
        self.state, self.standing = copied, event.round
        self.store.add(event.round, list(self.state))
        self._training_for, self._outcome, self._is_fresh = -1, None, True
        self._token += 1
        self._holds(event.round)
        return [Wake(self._rng.uniform(0.0, 0.2), Timer("app", "install", 0))]

    def _holds(self, round: int) -> None:
        self._oracle.replicas[self.me, round].append(root_of(self.state))


def build(
    seed: int, peers: int, link: Link = LAN, shape: Shape | None = None, unnoticed: float = 0.0, newcomers: int = 0
) -> tuple[World[Replica], Oracle]:
    """A world with a swarm in it, just started; `newcomers` have a name but no process yet."""
    names = peers_named(peers + newcomers)
    seeds, oracle, lives = names[:peers], Oracle(), Counter[PeerId]()
    settled = shape or Shape(start_members=peers)

    def make(me: PeerId, now: float, disk: dict[str, Any], rng: random.Random) -> Replica:
        life = lives[me]
        lives[me] += 1
        return Replica(me, seeds, disk, rng, oracle, settled, life)

    world = World(make, seed, link, unnoticed=unnoticed)
    for name, rate in settled.uplinks:
        world.network.set_uplink(name, rate)
    for name in seeds:
        world.start(name)
    return world, oracle

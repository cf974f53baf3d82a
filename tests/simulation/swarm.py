"""A simulated training swarm whose members decide by the log: `Member` as it is, with arithmetic on facts.

What is contributed, and how it is averaged, is in facts.py. A process finds on its disk what earlier ones have written:
the journal, a snapshot of the state, and the means since.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from shoal.protocol.averaging.apart import Standing
from shoal.protocol.averaging.events import Committed, HandIn, Lapsed, Waiting
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.replay import base_after, base_without, rounds_after
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Blamed, Effect, Event, Persist, Timer, Wake
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId, content_hash, digest
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.catchup.transfer import StateReceived
from shoal.protocol.log.core import EntryDecided
from shoal.protocol.log.keeper import Switched
from shoal.protocol.member.facts import PART, RunFacts
from shoal.protocol.member.member import Member
from shoal.protocol.member.past import Past
from shoal.protocol.member.presence import Parted
from shoal.protocol.messages.averaging import Contribution, Mean, Table
from shoal.protocol.messages.log import Shortcut
from shoal.protocol.messages.transfer import StateChunk
from tests.simulation.facts import FactReducer
from tests.simulation.journals import means_on, put_record, recalled
from tests.simulation.node import Node
from tests.simulation.oracle import Blind, Oracle
from tests.simulation.signing import FakeSigner
from tests.simulation.versions import Versions, initial_state, root_of

RUN = RunId(bytes(range(32)))  # the run that is simulated
TRAINING = 2.0  # virtual seconds of inner steps
FORCING = 0.2  # virtual seconds, if nothing else is said, until the means of a result are on disk, at most
SNAPSHOT = 3  # rounds between two snapshots of the state
WRITING = 0.2  # virtual seconds until one is on disk
BRANCH = digest("simulated run", RUN)


@dataclass(frozen=True)
class Shape:
    """What the swarm looks like."""

    chunks: int = 6
    min_members: int = 1
    start_members: int = 1
    last: int = 1_000_000
    unreachable: tuple[PeerId, ...] = ()  # dial out only, and own no chunks
    apart: tuple[tuple[PeerId, PeerId], ...] = ()  # pairs between which payloads take a relay; both know
    keepers: tuple[PeerId, ...] = ()  # keep state and vote, with weight 0
    slack: float = 0.0
    ups: tuple[tuple[PeerId, int], ...] = ()  # who knows how fast its uplink is, in bytes a second
    cycle: tuple[int, ...] = ()  # chunks of the rounds in turn, if each is about one fragment of the state
    steps: tuple[tuple[PeerId, float], ...] = ()  # seconds of a step, which who is called finishes; others have none
    forcing: float = FORCING
    continue_after: float | None = None  # seconds without a quorum

    @property
    def cycles(self) -> tuple[int, ...]:
        """The number of chunks of each round, in turn, as `Policy` takes it."""
        return self.cycle or (self.chunks,)

    def part(self, round: int) -> slice:
        """The chunks of the state that a round is about."""
        place = (round - 1) % len(self.cycles)
        return slice(sum(self.cycles[:place]), sum(self.cycles[: place + 1]))

    def up(self, peer: PeerId) -> int:
        """The rate that `peer` knows of its uplink, in bytes a second; 0: none."""
        return dict(self.ups).get(peer, 0)

    def step(self, peer: PeerId) -> float:
        """How long a step of `peer` takes, in seconds."""
        return dict(self.steps).get(peer, 0.0)

    def standing(self, peer: PeerId) -> Standing:
        """How others reach `peer`."""
        others = tuple(b if a == peer else a for a, b in self.apart if peer in (a, b))
        return Standing(peer not in self.unreachable, others)


def facts_of(peers: Sequence[PeerId], shape: Shape) -> RunFacts:
    """What everybody knows of the simulated run."""
    policy = Policy(shape.min_members, shape.start_members, 64, 1 << 30, shape.cycles, slack=shape.slack)
    origin = Base(0, 0, digest("genesis", RUN), root_of(initial_state(sum(shape.cycles))))
    return RunFacts(BRANCH, peers[0], origin, policy, continue_after=shape.continue_after)


class Peer(Node):
    """One process: a member, a worker that trains for a while, and a state."""

    def __init__(
        self,
        me: PeerId,
        peers: Sequence[PeerId],
        disk: dict[str, Any],
        rng: random.Random,
        oracle: Oracle,
        shape: Shape,
        now: float = 0.0,
    ) -> None:
        self.me = me
        self._seeds = addresses_given([peer for peer in peers if peer != me], shape.unreachable)
        self._rng = rng
        self._oracle = oracle
        self.shape = shape
        self._disk = disk
        self._size = sum(shape.cycles)
        facts, signer = replace(facts_of(peers, shape), anchor=disk.get("anchor")), FakeSigner(me)
        past = recalled(disk, facts, signer, lambda: oracle.life(me, facts.founder))
        base = self._recall_state(facts, past)
        past.keep_means(base, means_on(disk))
        past.archive = self
        self._base = base or facts.origin
        held = {self._base.round: list(self.state)} if base is not None else {}
        self.store = Versions(held, disk=disk.setdefault("download", {}))
        self.member = Member(me, (), facts, past, base, signer, lambda _: FactReducer(), self.store, rng)
        self._residual = [0.0] * self._size
        self._offered = [0.0] * self._size
        self._submitted: tuple[int, list[bytes]] = (0, [])  # a round, and what we contribute to its chunks
        self._decision: Decision | None = None
        self.unwritten: list[Message] = []  # records of results
        self._writing: deque[tuple[Base, list[bytes], Shortcut | None]] = deque()  # snapshots, and what to shorten then
        self._training_for = -1
        self._token = 0
        self.has_worker = True
        self._offered_nothing = False
        self.has_parted = False
        self.blamed: list[Blamed] = []
        self._role = ""
        self._is_astray, self._branch = False, self.member.log.register.branch  # as we were told

    @property
    def _on_branch(self) -> Oracle:
        return Blind() if self._is_astray else self._oracle.on(self._branch)

    # -- the disk -----------------------------------------------------------------------------------------------

    def _recall_state(self, facts: RunFacts, past: Past) -> Base | None:
        """Where we stand, as node/run/agreed_run.py finds it out; None if our log does not know the state."""
        base: Base
        base, state = self._disk.get("snapshot", (facts.origin, initial_state(self._size)))
        if past.certified.history(base.round) != base.history:
            self._disk.pop("snapshot", None)
            base, state = facts.origin, initial_state(self._size)
        self.state = list(state)
        if base == facts.origin and past.kept.first.parts[PART].round != facts.origin.round:
            return None
        for round, decision in rounds_after(base, past.outcomes, means_on(self._disk)):
            if decision is None:
                base = base_without(base, round)
                continue
            self._put(decision)
            base = base_after(base, decision, root_of(self.state))
        return base

    def persist(self, disk: dict[str, Any], name: str, record: Message) -> None:
        if name == "means":
            self._disk.setdefault("means", []).append(record)
        elif name == "result":
            self.unwritten.append(record)
        else:
            if name == "switch":
                self._disk["means"] = []
                self.unwritten.clear()
            put_record(self._disk, name, record, self.member.log.core)

    def _write_results(self) -> list[Effect]:
        """As the driver: some time after the result is applied, and before a state that follows from it."""
        results, self.unwritten = self.unwritten, []
        self._disk.setdefault("means", []).extend(results)
        kept = [record.round for record in results if isinstance(record, Table)]
        return [Wake(self._rng.uniform(0.0, self.shape.forcing), Timer("app", "kept", round)) for round in kept]

    def _put(self, decision: Decision) -> None:
        part = self.shape.part(decision.round)
        made = [content_hash(old + new) for old, new in zip(self.state[part], decision.payloads, strict=True)]
        self.state = [*self.state[: part.start], *made, *self.state[part.stop :]]

    def _snapshot(self, base: Base) -> list[Effect]:
        """Written beside the next rounds: whoever is killed before has none."""
        self._writing.append((base, list(self.state), self.member.log.beginning_for(PART, base.round)))
        return [Wake(WRITING, Timer("app", "written", 0))]

    def _written(self) -> None:
        base, state, beginning = self._writing.popleft()
        self._disk["snapshot"] = (base, state)
        self._disk["means"] = [each for each in self._disk.get("means", []) if each.round >= base.round]
        if beginning is not None:
            for effect in self.member.log.shorten(beginning):
                assert isinstance(effect, Persist)
                self.persist(self._disk, effect.name, effect.record)

    # -- the world's hooks --------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        effects = self.member.start(now, self._seeds)
        if up := self.shape.up(self.me):
            effects += self.member.report(now, step=0, samples=0, loss=None, reachability="unknown", line=(up, 0))
        return self._train_if_open(effects)

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        return self._train_if_open(self.member.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        if timer.core != "app":
            return self._train_if_open(self.member.fire(now, timer))
        if timer.name == "apply":
            return self._apply(now)
        if timer.name == "results":
            return self._write_results()
        if timer.name == "kept":
            self._disk["forced"] = max(timer.token, self._disk.get("forced", 0))
            return self._train_if_open(self.member.kept(now, timer.token))
        if timer.name == "written":
            effects = self._write_results()
            if self._writing:  # not where we have stopped, or left the branch, meanwhile
                self._written()
            return effects
        return self._submit(now) if timer.token == self._token else []

    def on_link_up(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_up(now, peer))

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_lost(now, peer))

    def step_aside(self, now: float) -> list[Effect]:
        return self.member.step_aside(now)

    def come_back(self, now: float) -> list[Effect]:
        return self._train_if_open(self.member.come_back(now))

    def payload_of(self, message: Message) -> Payload | None:
        if isinstance(message, StateChunk):
            return self.store.chunk(message.round, message.index)
        if isinstance(message, Mean):
            written = [each for each in self._disk["means"] if isinstance(each, Mean) and each.made == message.made]
            found = [each for each in written if (each.round, each.chunk) == (message.round, message.chunk)]
            return found[0].payload if found else None
        round, payloads = self._submitted
        assert isinstance(message, Contribution)
        assert message.round == round
        return payloads[message.chunk]

    def holds(self, round: int) -> bool:
        """Whether the means of a round that was decided are on our disk."""
        return any(each.round <= round for each in self._disk.get("means", []))

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        self.member.left(now, to, message, sent)

    def accuse(self, now: float, peer: PeerId) -> list[Effect]:
        member = self.member
        return self._train_if_open(
            member._digest(now, [*member.log.peer_down(peer), *member.rounds.peer_down(now, peer)])
        )

    def stop(self, now: float) -> list[Effect]:
        """Ask to be let go: `has_parted` once nothing more is to be done."""
        return self._train_if_open(self.member.stop(now))

    @property
    def round(self) -> int:
        """The round whose state we hold."""
        return self._base.round

    def phase(self) -> str:
        """As faults are aimed: scatter, gather, prepare or commit."""
        member = self.member
        round = member.rounds.round
        if round is None or member.phase == "syncing":
            return "commit" if member.phase == "applying" else member.phase
        if member.phase in ("training", "matching"):
            return member.phase
        if member.phase == "deciding":
            return "commit" if round.is_decided else "prepare"
        exchange = round.exchange
        return "scatter" if self.me in exchange.awaited() or not any(exchange.means) else "gather"

    def role(self) -> str:
        """proposer, owner or contributor: the highest of these."""
        member, round = self.member, self.member.rounds.round
        if round is not None and round.exchange.roster:
            owner = "owner" if round.exchange.owns_any() else "contributor"
            self._role = "proposer" if member.log.proposer == self.me else owner
        return self._role

    def on_event(self, now: float, event: Event) -> list[Effect]:
        match event:
            case Committed(decision=decision, counted=counted):
                self._on_branch.committed(self.me, decision, self._base.round)
                part = self.shape.part(decision.round)
                offered = self._offered[part]
                self._residual[part] = [0.0 if was else sent for was, sent in zip(counted, offered, strict=True)]
                self._on_branch.counted(self.me, decision, counted, offered)
                self._decision = decision
                self._offered = [0.0] * self._size
                return [Wake(self._rng.uniform(0.0, 0.05), Timer("app", "apply", 0))]
            case Lapsed():
                return [Wake(0.0, Timer("app", "apply", 0))]
            case EntryDecided(register=register):
                self._branch = register.branch
            case Switched(register=register):
                self._branch, self._is_astray = register.branch, True
                self._writing.clear()
            case StateReceived(base=base):
                self._is_astray = False
                self.state, self._decision, self._base = self.store.take(), None, base
                self._training_for, self._offered = -1, [0.0] * self._size  # of another state, so of no use
                self._submitted = (0, [])
                self.store.add(base.round, list(self.state))
                self._on_branch.holds(self.me, base.round, root_of(self.state))
                return [*self._snapshot(base), *self._train_if_open(self.member.opened(now, base))]
            case HandIn(round=round) if round == self._training_for:
                return self._hand_in(now)
            case Waiting():
                self._oracle.waiting(self._base.round, event.reason)
            case Blamed():
                self.blamed.append(event)
            case Parted():
                self.has_parted = True
                self._write_results()
                while self._writing:  # an orderly stop waits for it
                    self._written()
        return []

    # -- the worker ---------------------------------------------------------------------------------------------

    def _train_if_open(self, effects: list[Effect]) -> list[Effect]:
        base = self.member.rounds.base
        if base is None or self.member.transfer.active or base.round + 1 == self._training_for:
            return effects
        self._on_branch.holds(self.me, base.round, root_of(self.state))
        return self._train(effects)

    def _train(self, effects: list[Effect]) -> list[Effect]:
        base = self.member.rounds.base
        if base is None:
            return effects
        self._offered_nothing = self._offered_nothing and self._training_for == base.round + 1
        self._training_for = base.round + 1
        self._token += 1
        if self._training_for > self.shape.last:
            return effects
        took = self._rng.uniform(0.5, 1.0) * TRAINING if self.has_worker else 0.0
        return [*effects, Wake(took, Timer("app", "trained", self._token))]

    def _submit(self, now: float) -> list[Effect]:
        base = self.member.rounds.base
        has_offered = self._submitted[0] == self._training_for and not self._offered_nothing
        if base is None or has_offered or self.member.phase in ("syncing", "applying"):
            return []
        self._token += 1
        trains = self.has_worker and self.me not in self.shape.keepers
        self._offered_nothing = not self.has_worker
        weight = self._rng.randint(1, 1000) if trains else 0
        part = self.shape.part(base.round + 1)
        offered = [old + (1.0 + self._rng.random()) for old in self._residual[part]]
        self._offered[part] = offered
        payloads = [
            msgpack.packb([self.me, base.round + 1, base.root, chunk, amount]) for chunk, amount in enumerate(offered)
        ]
        self._submitted = base.round + 1, payloads
        self._oracle.offered(self.me, base.round + 1, weight, offered)
        ready = Ready(weight, up=self.shape.up(self.me), standing=self.shape.standing(self.me))
        return self._train_if_open(self.member.submit(now, ready, payloads.__getitem__ if weight else None))

    def _hand_in(self, now: float) -> list[Effect]:
        """At the end of the step that the worker is in; its steps end at whole multiples of their length."""
        step = self.shape.step(self.me)
        return [Wake(step - now % step, Timer("app", "trained", self._token))] if step else self._submit(now)

    def lose_worker(self, now: float) -> list[Effect]:
        """Our worker is gone: we offer nothing, to the open round at once."""
        self.has_worker = False
        return self._submit(now) if self.member.phase == "training" else []

    def regain_worker(self, now: float) -> list[Effect]:
        """The worker is back and trains for the open round; its contribution replaces the empty one."""
        self.has_worker = True
        return self._train([])

    def _apply(self, now: float) -> list[Effect]:
        decision, self._decision = self._decision, None
        if self.member.rounds.phase != "applying":
            return []
        if decision is not None:
            self._put(decision)
        effects = self.member.applied(now, root_of(self.state))
        base = self.member.rounds.base
        round = decision.round if decision is not None else self._base.round + 1
        self.store.add(round, list(self.state))
        self._base = base if base is not None and base.round == round else Base(round, 0, NO_DIGEST, NO_DIGEST)
        self._on_branch.holds(self.me, round, root_of(self.state))
        writing = self._snapshot(base) if base is not None and round % SNAPSHOT == 0 else []
        writing.append(Wake(self._rng.uniform(0.0, 0.1), Timer("app", "results", 0)))
        return [*writing, *self._train_if_open(effects)]


def addresses_given(others: Sequence[PeerId], unreachable: Collection[PeerId]) -> list[PeerId]:
    """Whom somebody is told of: three, and one more where only one of them can be dialled, as that one may leave."""
    first, more = list(others[:3]), [peer for peer in others[3:] if peer not in unreachable]
    return first if sum(peer not in unreachable for peer in first) > 1 else [*first, *more[:1]]


def peers_named(count: int) -> list[PeerId]:
    """Names for a swarm."""
    return [PeerId(f"p{index:02d}") for index in range(count)]

"""A simulated training swarm: `Member` as it is in production, with arithmetic on tuples and an oracle beside it.

What is contributed, and how it is averaged, is in facts.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack

from shoal.protocol.base.effects import Effect, Event, Timer, Wake
from shoal.protocol.base.ids import PeerId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.transfer import StateReceived
from shoal.protocol.member.member import PART, Member, RunFacts
from shoal.protocol.member.parting import Parted
from shoal.protocol.rounds.agreement.apart import Standing
from shoal.protocol.rounds.agreement.certificate import genesis
from shoal.protocol.rounds.agreement.roster import Base, Offer, Policy
from shoal.protocol.rounds.allreduce.allreduce import Blamed
from shoal.protocol.rounds.allreduce.shelf import Decision
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.matchmaking.milestones import Aborted, Committed, HandIn, Waiting
from tests.simulation.facts import FactReducer
from tests.simulation.ledger import RUN
from tests.simulation.node import Node
from tests.simulation.oracle import Oracle
from tests.simulation.resting import load_rest, save_rest
from tests.simulation.signing import FakeSigner
from tests.simulation.versions import Versions, initial_state, root_of

TRAINING = 2.0  # virtual seconds of inner steps


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

    def standing(self, peer: PeerId) -> Standing:
        """How others reach `peer`."""
        others = tuple(b if a == peer else a for a, b in self.apart if peer in (a, b))
        return Standing(peer not in self.unreachable, others)


class Peer(Node):
    """One process: a Member, a worker that trains for a while, and a state."""

    def __init__(
        self,
        me: PeerId,
        peers: Sequence[PeerId],
        disk: dict[str, Message],
        rng: random.Random,
        oracle: Oracle,
        shape: Shape,
    ) -> None:
        self.me = me
        self._seeds = [peer for peer in peers if peer != me][:3]
        self._rng = rng
        self._oracle = oracle
        self.shape = shape
        self._disk = disk
        rested = load_rest(disk)
        self._size = sum(shape.cycles)
        self.state = rested.state if rested is not None else initial_state(self._size)
        self._standing = rested.rest.round if rested is not None else 0  # the round whose state this is
        self.store = Versions({self._standing: list(self.state)})
        policy = Policy(shape.min_members, shape.start_members, 64, 1 << 30, shape.cycles, slack=shape.slack)
        facts = RunFacts(Base(0, genesis(RUN, PART), root_of(initial_state(self._size)), (peers[0],)), policy)
        signer = FakeSigner(me)
        rest = rested.rest if rested is not None else None
        self.member = Member(me, (), facts, signer, lambda _: FactReducer(), self.store, rng, disk, rest=rest)
        self._residual = [0.0] * self._size
        self._offered = [0.0] * self._size
        self._decision: Decision | None = None
        self._training_for = -1
        self._token = 0
        self.has_worker = True
        self._offered_nothing = False  # in the open round, and may offer something yet
        self.has_parted = False
        self.blamed: list[Blamed] = []
        self._role = ""

    # -- the world's hooks ----------------------------------------------------------------------------------

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
        return self._submit(now) if timer.token == self._token else []

    def on_link_up(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_up(now, peer))

    def on_link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member.link_lost(now, peer))

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        self.member.left(now, to, message, sent)

    def accuse(self, now: float, peer: PeerId) -> list[Effect]:
        return self._train_if_open(self.member._digest(now, self.member.rounds.peer_down(now, peer)))

    def leave(self, now: float) -> list[Effect]:
        """Say goodbye."""
        return self.member.leave(now)

    def stop(self, now: float) -> list[Effect]:
        """End, as a service that is stopped: `has_parted` once nothing more is to be done."""
        return self._train_if_open(self.member.stop(now))

    @property
    def round(self) -> int:
        """The round whose state we hold."""
        return self._standing

    def knows(self, round: int) -> bool:
        """Whether we can tell others what was decided."""
        return self.member.rounds.shelf.decision(round) is not None

    def phase(self) -> str:
        attempt = self.member.rounds.attempt
        if attempt is None or self.member.phase == "syncing":
            return "commit" if self.member.phase == "applying" else self.member.phase
        return stage(attempt, self.me)

    def role(self) -> str:
        """leader, owner or contributor: the highest of these."""
        rounds, attempt, me = self.member.rounds, self.member.rounds.attempt, self.me
        if attempt is not None:
            self._role = "leader" if attempt.leads else "owner" if me in attempt.plan.owners else "contributor"
        elif rounds.base is not None:
            worker = "contributor" if me in self.shape.unreachable else "owner"
            self._role = "leader" if rounds.leader == me else worker
        return self._role

    def on_event(self, now: float, event: Event) -> list[Effect]:
        match event:
            case Committed(decision=decision, counted=counted):
                self._oracle.committed(self.me, decision, self._standing)
                part = self.shape.part(decision.round)
                offered = self._offered[part]
                self._residual[part] = [0.0 if was else sent for was, sent in zip(counted, offered, strict=True)]
                self._oracle.counted(self.me, decision, counted, offered)
                self._decision = decision
                self._offered = [0.0] * self._size
                return [Wake(self._rng.uniform(0.0, 0.05), Timer("app", "apply", 0))]
            case StateReceived(base=base, payloads=payloads):
                self.state, self._decision, self._standing = [bytes(each) for each in payloads], None, base.round
                self._training_for = -1
                self.store.put(base.round, list(self.state))
                self._oracle.holds(self.me, base.round, root_of(self.state))
                return self._train_if_open(self.member.opened(now, base))
            case HandIn(round=round) if round == self._training_for:
                return self._submit(now)
            case Aborted():
                self._oracle.aborted(self.me, event)
            case Waiting():
                self._oracle.waiting(self._standing, event.reason)
            case Blamed():
                self.blamed.append(event)
            case Parted():
                self.has_parted = True
                save_rest(self._disk, self.member.rest(), self.store.states)
        return []

    # -- the worker -----------------------------------------------------------------------------------------

    def _train_if_open(self, effects: list[Effect]) -> list[Effect]:
        base = self.member.rounds.base
        if base is None or self.member.transfer.active or base.round + 1 == self._training_for:
            return effects
        self._oracle.holds(self.me, base.round, root_of(self.state))
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
        late = ("matching", "reducing", "preparing") if self._offered_nothing else ()
        if base is None or self.member.phase not in ("training", *late):
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
        self._oracle.offered(self.me, base.round + 1, weight, offered)
        self._oracle.begins(base.round + 1)
        offer = Offer(weight, up=self.shape.up(self.me), standing=self.shape.standing(self.me))
        return self.member.submit(now, offer, payloads.__getitem__ if weight else None)

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
        if decision is None:
            return []
        part = self.shape.part(decision.round)
        made = [content_hash(old + new) for old, new in zip(self.state[part], decision.payloads, strict=True)]
        self.state = [*self.state[: part.start], *made, *self.state[part.stop :]]
        self._standing = decision.round
        self.store.put(decision.round, list(self.state))
        self._oracle.holds(self.me, decision.round, root_of(self.state))
        return self._train_if_open(self.member.applied(now, root_of(self.state)))


def stage(attempt: Attempt, me: PeerId) -> str:
    """scatter, gather, prepare or commit, at `me`: finer than the phase that the status shows."""
    commit, reduce = attempt._commit, attempt._reduce
    if commit.value is not None:
        return "prepare" if attempt.leads or commit.needs_bytes else "commit"
    if reduce is None:
        return "prepare"
    is_owner_waiting = me in reduce.lacking.awaited()  # for contributions to its own chunks
    return "scatter" if is_owner_waiting or not any(reduce.results) else "gather"


def peers_named(count: int) -> list[PeerId]:
    """Names for a swarm."""
    return [PeerId(f"p{index:02d}") for index in range(count)]

"""One group at work: from its roster to a decision, or to the insight that it can reach none.

Rules:
- Whoever is lost is gone on without, as long as quorums of the old and the new voters are left.
- If the leader is lost, the next live member of the roster takes over within the attempt: what was reduced or
  prepared is used, not repeated.
- The silent are reminded, ever more rarely, and given up in the end; so nothing waits for ever on a live but
  wedged member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.allreduce import AllReduce
from shoal.protocol.certificate import counted_everywhere, result_digest
from shoal.protocol.commit import Commit, Elected, Overtaken, Proposed
from shoal.protocol.effects import Effect, Event, Send, Tell
from shoal.protocol.errors import RemoteError
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import PeerId
from shoal.protocol.messages import rounds as wire
from shoal.protocol.quorum import is_quorum
from shoal.protocol.reducer import Reducer
from shoal.protocol.roster import Base, Policy, make_plan
from shoal.protocol.shelf import Shelf
from shoal.protocol.signing import Signer
from shoal.protocol.silence import Silence
from shoal.protocol.voting import VoteState, must_propose
from shoal.protocol.wire import Message

STALLED = 12  # patiences without any progress before an attempt is given up


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """This group cannot decide any more; `attempt` is the lowest that may work."""

    reason: str
    attempt: int


def adopted_value(roster: wire.Roster, base: Base) -> wire.PreparedValue | None:
    """What the members' JOINs oblige the group to propose; None: it is free to reduce."""
    answers = {join.peer: join.prepared for join in roster.joins}
    answers |= {leave.peer: leave.prepared for leave in roster.leaves}
    return must_propose(answers, base.voters, [leave.peer for leave in roster.leaves])


@dataclass(frozen=True, slots=True)
class Context:
    """What an attempt is given by its round."""

    me: PeerId
    base: Base
    vote: VoteState
    policy: Policy
    signer: Signer
    shelf: Shelf
    leaves: Callable[[], tuple[wire.Leave, ...]]
    pace: Estimate  # learned: how long a live member is silent while it works


class Attempt:
    """One member's side of one group."""

    def __init__(
        self,
        context: Context,
        roster: wire.Roster,
        reducer: Reducer,
        contribution: Callable[[int], bytes] | None,
        now: float,
    ) -> None:
        self._context = context
        self._me = context.me
        self._roster = roster
        self.plan = make_plan(roster, context.policy)
        self._commit = Commit(context.me, context.base, context.vote, context.signer, context.leaves)
        self._commit.open(wire.Ballot(roster.attempt, 0, roster.leader), self.plan.members)
        self._adopted = adopted_value(roster, context.base)
        self._reduce: AllReduce | None = None
        if self._adopted is None:
            self._reduce = AllReduce(context.me, self.plan, reducer, contribution, context.shelf)
        self._silence = Silence(self.plan.members, now)
        self._lost: list[PeerId] = []
        self._sequence = 0
        self._retry_from = roster.attempt + 1
        self._take_over_at: float | None = None
        self._fetches = 0
        self._progress: tuple[object, ...] = ()
        self._progress_at = now

    @property
    def number(self) -> int:
        """Which attempt this is."""
        return self._roster.attempt

    @property
    def phase(self) -> str:
        """reducing until there is a proposal, preparing from then on."""
        return "reducing" if self._commit.value is None and self._adopted is None else "preparing"

    @property
    def leads(self) -> bool:
        """Whether we lead now."""
        return self._commit.leader == self._me

    @property
    def leader(self) -> PeerId:
        """Who leads now."""
        return self._commit.leader

    def owns_any(self) -> bool:
        """Whether we own chunks."""
        return self._reduce is not None and self._reduce.owns_any()

    def waiting_for(self) -> list[PeerId]:
        """Members that we need something from, in roster order."""
        needed = self._reduce.waiting_for() if self._reduce is not None else []
        needed = needed + (self._commit.unanswered() if self.leads else [self._commit.leader])
        return [peer for peer in self.plan.members if peer in needed and peer != self._me and peer not in self._lost]

    # -- inputs -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Begin to reduce, or propose at once what an earlier attempt has prepared."""
        if self._reduce is not None:
            return self._advance(now, self._reduce.start())
        if self.leads and self._adopted is not None:
            return self._advance(now, self._commit.propose(self._adopted.proposal, self._adopted.chunks))
        return []

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A message of this attempt."""
        if sender not in self.plan.members:
            raise RemoteError("is not in this round's group", sender)
        effects = self._dispatch(sender, message)
        self._hear(now, sender, not isinstance(message, wire.Ask | wire.Want | wire.Refuse))
        return self._advance(now, effects)

    def noted(self, now: float, peer: PeerId) -> None:
        """`peer` lives, and has nothing for us yet."""
        self._hear(now, peer, progress=False)

    def fetched(self, now: float, sender: PeerId, message: wire.Fetched) -> list[Effect]:
        """Bytes we asked for; the shelf has them already."""
        self._hear(now, sender, progress=True)
        effects: list[Effect] = []
        if self._reduce is not None and message.chunk < len(self.plan.owners):
            effects = self._reduce.adopt(message.chunk, message.mask, message.payload)
        return self._advance(now, effects)

    def lose(self, now: float, peer: PeerId) -> list[Effect]:
        """Go on without `peer`."""
        if peer not in self.plan.members or peer in self._lost or peer == self._me:
            return []
        self._lost.append(peer)
        effects = self._reduce.lose(peer) if self._reduce is not None else []
        if not self._can_decide():
            return [*effects, Tell(AttemptFailed(f"no quorum without {peer}", self._retry_from))]
        return self._advance(now, effects + self._replace_lost(now))

    def overtaken(self, now: float, peer: PeerId, attempt: int) -> list[Effect]:
        """`peer` has moved on to a higher attempt; its vote is not to be had in this one."""
        if attempt <= self.number:
            return []
        self._retry_from = max(self._retry_from, attempt)
        return self.lose(now, peer)

    def recount(self, now: float) -> list[Effect]:
        """A voter has signed off: what is missing may be enough now."""
        return self._advance(now, self._commit.recount())

    def tick(self, now: float) -> list[Effect]:
        """Remind the silent, fetch what is missing, take over from a lost leader, notice a stall."""
        patience = self._context.pace.deadline()
        effects: list[Effect] = []
        for peer in self.waiting_for():
            if self._silence.is_due(now, peer, patience):
                given_up = self._silence.is_given_up(peer)
                effects += self.lose(now, peer) if given_up else self._remind(peer)
        effects += self._fetch(everything=True)
        if self._take_over_at is not None and now >= self._take_over_at:
            effects += self._take_over(now)
        return self._advance(now, effects) + self._check_stall(now, patience)

    # -- inside -----------------------------------------------------------------------------------------------

    def _hear(self, now: float, peer: PeerId, progress: bool) -> None:
        """A sign of life; progress also teaches how long live members take."""
        gap = self._silence.hear(now, peer, progress)
        if gap is not None:
            self._context.pace.observe(gap)

    def _dispatch(self, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case wire.Poll():
                return self._commit.receive_poll(sender, message)
            case wire.Promise():
                return self._commit.receive_promise(sender, message)
            case wire.Prepare():
                return self._commit.receive_prepare(sender, message)
            case wire.Prepared():
                return self._commit.receive_prepared(sender, message)
            case wire.Refuse():
                return self._commit.receive_refuse(sender, message)
            case wire.Ask():
                return self._answer(sender, message)
        return self._dispatch_reduction(sender, message) if self._reduce is not None else []

    def _dispatch_reduction(self, sender: PeerId, message: Message) -> list[Effect]:
        assert self._reduce is not None
        match message:
            case wire.Contribution():
                return self._reduce.receive_contribution(sender, message)
            case wire.Final():
                return self._reduce.receive_final(sender, message)
            case wire.Want():
                return self._reduce.receive_want(sender, message)
            case wire.Have():
                return self._reduce.receive_have(sender, message)
            case wire.Reassign():
                return self._receive_reassign(sender, message)
        return []

    def _receive_reassign(self, sender: PeerId, message: wire.Reassign) -> list[Effect]:
        assert self._reduce is not None
        if message.ballot.leader != sender:
            raise RemoteError("reassigns chunks in somebody else's name", sender)
        if message.ballot.order < self._commit.ballot.order:
            return []
        return self._reduce.reassign(sender, message.assignments)

    def _advance(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Follow up what just happened until nothing more follows from it."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(Proposed()):
                    done += self._fetch(everything=False)
                case Tell(Elected(ballot)):
                    done += self._go_on_leading(ballot)
                case Tell(Overtaken(peer, promised)):
                    done += self.overtaken(now, peer, promised.attempt)
                case _:
                    done.append(effect)
        if self._reduce is not None and self._reduce.is_complete and self._commit.may_propose:
            done += self._advance(now, self._propose(self._reduce))
        if self._commit.needs_bytes and not self._missing():
            done += self._advance(now, self._commit.bytes_held())
        return done

    def _propose(self, reduce: AllReduce) -> list[Effect]:
        """Put the reduction's result to the vote."""
        plan, left = self.plan, [leave.peer for leave in self._context.leaves()]
        chunks = reduce.references()
        counted = counted_everywhere(chunks, len(plan.members))
        proposal = wire.Proposal(
            round=plan.round,
            part=plan.part,
            attempt=plan.attempt,
            base_history=self._context.base.history,
            base_root=self._context.base.root,
            result=result_digest(chunks),
            members=plan.members,
            weights=plan.weights,
            voters=tuple(peer for peer in plan.members if peer not in self._lost and peer not in left),
            samples=sum(plan.weights[index] for index in counted),
        )
        return self._commit.propose(proposal, chunks)

    def _missing(self) -> list[int]:
        value = self._commit.value
        return self._context.shelf.missing(value.chunks) if value is not None else []

    def _fetch(self, everything: bool) -> list[Effect]:
        """Ask for bytes of the proposal by hash; at first only for those that nobody is about to send us."""
        value = self._commit.value
        if value is None or not self._commit.needs_bytes:
            return []
        chunks = [chunk for chunk in self._missing() if everything or not self._is_expected(chunk)]
        holders = [peer for peer in (value.ballot.leader, *self.plan.members) if peer not in (self._me, *self._lost)]
        if not chunks or not holders:
            return []
        source = holders[self._fetches % len(holders)]
        self._fetches += 1
        shelf, plan = self._context.shelf, self.plan
        return [shelf.fetch(plan.round, plan.part, chunk, value.chunks[chunk].hash, source) for chunk in chunks]

    def _is_expected(self, chunk: int) -> bool:
        return self._reduce is not None and self._reduce.is_expected(chunk)

    def _can_decide(self) -> bool:
        present = [peer for peer in self.plan.members if peer not in self._lost]
        left = [leave.peer for leave in self._context.leaves()]
        voters = self._commit.value.proposal.voters if self._commit.value is not None else tuple(present)
        return is_quorum(present, self._context.base.voters, left) and is_quorum(present, voters, left)

    def _replace_lost(self, now: float) -> list[Effect]:
        if self.leads:
            return self._reassign(everything=False)
        if self._commit.leader not in self._lost:
            return []
        live = [peer for peer in self.plan.members if peer not in self._lost]
        if live[0] == self._me:
            return self._take_over(now)
        self._take_over_at = now + 2 * live.index(self._me) * self._context.pace.deadline()
        return []

    def _take_over(self, now: float) -> list[Effect]:
        self._take_over_at = None
        return self._commit.take_over() if self._commit.leader in self._lost else []

    def _go_on_leading(self, ballot: wire.Ballot) -> list[Effect]:
        """Elected, and nothing was prepared: the reduction goes on under us."""
        if self._reduce is None and self._adopted is not None:
            return self._commit.propose(self._adopted.proposal, self._adopted.chunks)
        return self._reassign(everything=True)

    def _reassign(self, everything: bool) -> list[Effect]:
        if self._reduce is None or self._commit.is_polling:
            return []
        self._sequence += 1
        message = self._reduce.reassignment(self._commit.ballot, self._sequence, everything)
        if message is None:
            return []
        others = [peer for peer in self.plan.members if peer != self._me and peer not in self._lost]
        return [*(Send(peer, message) for peer in others), *self._reduce.reassign(self._me, message.assignments)]

    def _remind(self, peer: PeerId) -> list[Effect]:
        effects = self._reduce.want(peer) if self._reduce is not None else []
        if self.leads:
            return effects + self._commit.repeat(peer)
        return [*effects, Send(peer, wire.Ask(self.plan.round, self.plan.part, self.number))]

    def _answer(self, sender: PeerId, message: wire.Ask) -> list[Effect]:
        """Somebody has heard nothing for a while, or lacks the roster."""
        if message.attempt < self.number:
            return [Send(sender, self._roster), *(self._commit.repeat(sender) if self.leads else [])]
        noted = Send(sender, wire.Noted(self.plan.round, self.plan.part, self.number))
        return [noted, *(self._commit.repeat(sender) if self.leads else [])]

    def _check_stall(self, now: float, patience: float) -> list[Effect]:
        have = sum(result is not None for result in self._reduce.results) if self._reduce is not None else 0
        progress = (have, len(self._missing()), self._commit.ballot, len(self._commit.unanswered()))
        if progress != self._progress:
            self._progress, self._progress_at = progress, now
        if now - self._progress_at < STALLED * patience:
            return []
        return [Tell(AttemptFailed("no progress", self._retry_from))]

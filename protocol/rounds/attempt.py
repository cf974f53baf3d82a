"""One group at work: from its roster to a decision, or to the insight that it can reach none.

Rules:
- Whoever is lost is gone on without, as long as quorums of the old and the new voters are left.
- If the leader is lost, the next live member of the roster takes over within the attempt: what was reduced or
  prepared is used, not repeated.
- The silent are reminded, ever more rarely, and given up in the end; so nothing waits for ever on a live but
  wedged member.
"""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages import rounds as wire
from shoal.protocol.rounds.agreement.certificate import make_proposal
from shoal.protocol.rounds.agreement.roster import Base, answers, check_proposed, first_ballot, make_plan
from shoal.protocol.rounds.agreement.voting import counting, must_propose
from shoal.protocol.rounds.allreduce.allreduce import AllReduce
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer
from shoal.protocol.rounds.commit.commit import Commit, Elected, Overtaken, Proposed
from shoal.protocol.rounds.commit.headway import Headway, payloads_of
from shoal.protocol.rounds.commit.leadership import Leadership
from shoal.protocol.rounds.commit.reminders import Reminders
from shoal.protocol.rounds.commit.silence import Stall
from shoal.protocol.rounds.commit.succession import Succession
from shoal.protocol.rounds.fetching import Fetching
from shoal.protocol.rounds.matchmaking.candidates import MAX_ATTEMPT_STEP
from shoal.protocol.rounds.matchmaking.context import Context
from shoal.protocol.rounds.matchmaking.failure import AttemptFailed, Failure, Kind

STALLED = 16  # patiences without any progress, anywhere in the group, before we give up
SIGNS_OF_LIFE = wire.Ask | wire.Want | wire.Have | wire.Busy | wire.Refuse  # no progress in themselves


def adopted_value(roster: wire.Roster, base: Base) -> wire.PreparedValue | None:
    """What the members' JOINs oblige the group to propose; None: it is free to reduce."""
    return must_propose(answers(roster.joins), roster.leaves, base.voters)


class Attempt:
    """One member's side of one group."""

    def __init__(
        self,
        context: Context,
        roster: wire.Roster,
        reducer: Reducer,
        contribution: Contribute | None,
        fetching: Fetching,
        now: float,
    ) -> None:
        means = context.means
        self._context = context
        self._means = means
        self._me = means.me
        self._roster = roster
        self.plan = make_plan(roster, means.policy)
        chunks = means.policy.chunks_in(roster.round)
        self._commit = Commit(means.me, context.base, chunks, context.vote, means.signer, context.leaves)
        self._commit.open(first_ballot(roster), self.plan.members)
        self._adopted = adopted_value(roster, context.base)
        self._reduce: AllReduce | None = None
        if self._adopted is None:
            self._reduce = AllReduce(means.me, self.plan, reducer, contribution, means.shelf, context.wanted)
        self._headway = Headway(payloads_of(self.plan), now, means.pace)
        self._succession = Succession(means.me, self.plan.members)
        self._stall = Stall(now)
        self._leadership = Leadership(means.me, self._commit, self._reduce, self._succession, self._headway, means.pace)
        self._reminders = Reminders(means, roster, self._reduce, self._leadership)
        self._retry_from = roster.attempt + 1
        self._fetching = fetching

    def __repr__(self) -> str:
        return f"Attempt({self.number}, {self.phase}, {self._reduce}, {self._commit}, {self._succession})"

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
        return self._leadership.is_ours

    @property
    def leader(self) -> PeerId:
        """Who leads now."""
        return self._commit.leader

    def owns_any(self) -> bool:
        """Whether we own chunks."""
        return self._reduce is not None and self._reduce.owns_any()

    def waiting_for(self) -> list[PeerId]:
        """For people: whom the group hangs on, in roster order; a leader that lacks bytes like us is not named."""
        owing = self._reduce.lacking.to_blame() if self._reduce is not None else []
        return self._live_among(owing) or self._live_among(self._to_speak())

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
        taken = self._taken
        effects = self._dispatch(now, sender, message)
        self._means.outbox.taken_count += self._taken - taken
        progress = self._taken > taken if message.bulk else not isinstance(message, SIGNS_OF_LIFE)
        self._headway.hear(now, sender, progress)
        return self._advance(now, effects)

    def fetched(self, now: float, sender: PeerId, message: wire.Fetched, is_new: bool) -> list[Effect]:
        """Bytes we asked for; the shelf has them already, and `is_new` says since when."""
        taken, effects = self._taken, list[Effect]()
        if self._reduce is not None and message.chunk < len(self.plan.owners):
            effects = self._reduce.adopt(message.chunk, message.mask, message.payload)
        is_of_use = is_new or self._taken > taken  # an earlier attempt may have got them
        self._means.outbox.taken_count += is_of_use
        self._headway.hear(now, sender, progress=is_of_use)
        return self._advance(now, effects)

    def lose(self, now: float, peer: PeerId) -> list[Effect]:
        """Go on without `peer`."""
        if not self._succession.lose(peer):
            return []
        effects = self._reduce.lose(peer) if self._reduce is not None else []
        if not self._can_decide():
            return [*effects, self._failed(Kind.NO_QUORUM, f"no quorum without {peer}")]
        return self._advance(now, effects + self._leadership.replace_lost(now))

    def overtaken(self, now: float, peer: PeerId, attempt: int) -> list[Effect]:
        """`peer` has moved on to a higher attempt; its vote is not to be had in this one."""
        if attempt <= self.number or peer not in self.plan.members:
            return []
        if attempt > self.number + MAX_ATTEMPT_STEP:
            raise RemoteError(f"is in attempt {attempt}, far from anybody", peer)
        self._retry_from = max(self._retry_from, attempt)
        return self.lose(now, peer)

    def recount(self, now: float) -> list[Effect]:
        """A voter has signed off: what is missing may be enough now."""
        return self._advance(now, self._commit.recount())

    def tick(self, now: float) -> list[Effect]:
        """Remind the silent, fetch what is missing, take over from a lost leader, notice a stall."""
        effects: list[Effect] = []
        owing = self._owing()
        for peer in self._live_among(owing + self._to_speak()):
            if self._headway.is_due(now, peer):
                given_up = self._headway.is_given_up(now, peer, owes_bytes=peer in owing)
                effects += self.lose(now, peer) if given_up else self._reminders.remind(peer)
        effects += self._fetch(now)
        effects += self._leadership.take_over_if_due(now)
        return self._advance(now, effects) + self._check_stall(now)

    def is_awaited(self, now: float, chunk: int) -> bool:
        """Whether a chunk that is not here is on its way from its owner, who is not late."""
        sender = self._reduce.lacking.sender_of(chunk) if self._reduce is not None else None
        return sender not in (None, self._me) and not self._headway.is_late(now, sender)

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def _taken(self) -> int:
        return self._reduce.taken if self._reduce is not None else 0

    def _owing(self) -> list[PeerId]:
        return self._reduce.lacking.awaited() if self._reduce is not None else []

    def _to_speak(self) -> list[PeerId]:
        """Who owes us a word: the voters, if we lead, else the leader."""
        return self._commit.unanswered() if self.leads else [self._commit.leader]

    def _live_among(self, peers: list[PeerId]) -> list[PeerId]:
        return [peer for peer in self._succession.live() if peer in peers and peer != self._me]

    def _dispatch(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case wire.Poll():
                return self._commit.receive_poll(sender, message)
            case wire.Promise():
                return self._commit.receive_promise(sender, message)
            case wire.Prepare():
                check_proposed(message.proposal, self._roster, sender)
                effects = self._commit.receive_prepare(sender, message)
                return effects + (self._reminders.say_busy(sender) if self._missing() else [])
            case wire.Prepared():
                return self._commit.receive_prepared(sender, message)
            case wire.Refuse():
                return self._commit.receive_refuse(sender, message)
            case wire.Ask():
                return self._reminders.answer(sender, message)
            case wire.Busy():
                owes_its_own = self._reduce is not None and self._reduce.lacking.lacks_contribution(sender)
                self._headway.report(now, sender, message, may_wait=not owes_its_own)
                return []
        return self._dispatch_reduction(now, sender, message) if self._reduce is not None else []

    def _dispatch_reduction(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        assert self._reduce is not None
        match message:
            case wire.Contribution():
                return self._reduce.receive_contribution(sender, message)
            case wire.Final():
                return self._reduce.receive_final(sender, message)
            case wire.Want():
                return self._reminders.answer_want(now, sender, message)
            case wire.Have():
                return self._reduce.receive_have(sender, message)
            case wire.Reassign():
                return self._receive_reassign(now, sender, message)
        return []

    def _receive_reassign(self, now: float, sender: PeerId, message: wire.Reassign) -> list[Effect]:
        assert self._reduce is not None
        if message.ballot.leader != sender:
            raise RemoteError("reassigns chunks in somebody else's name", sender)
        if message.ballot.order < self._commit.ballot.order:
            return []
        self._headway.wait_anew(now)
        return self._reduce.reassign(sender, message.assignments)

    def _advance(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Follow up what just happened until nothing more follows from it."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(Proposed()):
                    done += self._fetch(now)
                case Tell(Elected()):
                    done += self._leadership.go_on(now, self._adopted)
                case Tell(Overtaken(peer, promised)):
                    done += self.overtaken(now, peer, promised.attempt)
                case _:
                    done.append(effect)
        if self._reduce is not None and self._reduce.is_complete and self._commit.may_propose:
            done += self._advance(now, self._propose(self._reduce))
        if self._commit.needs_bytes and not self._missing():
            done += self._advance(now, self._commit.bytes_held())
        if self._reduce is not None and self._reduce.is_hopeless and self._commit.value is None:
            done.append(self._failed(Kind.NO_CONTRIBUTOR, "nobody is left who could contribute to a chunk"))
        return done

    def _propose(self, reduce: AllReduce) -> list[Effect]:
        """Put the reduction's result to the vote."""
        chunks = reduce.results.references()
        gone = [*self._succession.lost, *(leave.peer for leave in self._context.leaves())]
        return self._commit.propose(make_proposal(self.plan, self._context.base, chunks, gone), chunks)

    def _missing(self) -> list[int]:
        value = self._commit.value
        return self._means.shelf.missing(value.chunks) if value is not None else []

    def _fetch(self, now: float) -> list[Effect]:
        """Ask by hash for those bytes of the proposal that nobody is about to send us."""
        value, live = self._commit.value, self._succession.live()
        if value is None or not self._commit.needs_bytes:
            return []
        chunks = [chunk for chunk in self._missing() if not self.is_awaited(now, chunk)]
        holders = [peer for peer in (value.ballot.leader, *live) if peer in live and peer != self._me]
        return self._fetching.ask(now, value.chunks, chunks, self.plan.ways.nearest(self._me, holders))

    def _can_decide(self) -> bool:
        left = [leave.peer for leave in counting(self._context.leaves(), self._commit.ballot)]
        value = self._commit.value or self._adopted
        electorates = [self._context.base.voters, *([value.proposal.voters] if value is not None else [])]
        return self._succession.can_decide(*electorates, left=left)

    def _check_stall(self, now: float) -> list[Effect]:
        """If nothing moves any more, go on without one of those that have only had excuses; else fail."""
        owing = self._owing()
        moved, lost = self._means.outbox.moved + self._headway.moved, len(self._succession.lost)
        state = (moved, lost, len(self._missing()), self._commit.ballot, len(self._commit.unanswered()))
        patience = self._headway.longest_patience() if owing else self._means.pace.deadline()
        if not self._stall.is_long(now, state, STALLED * patience):
            return []
        excused = [peer for peer in self.waiting_for() if peer in owing and self._headway.waits(peer)]
        return self.lose(now, excused[0]) if excused else [self._failed(Kind.NO_PROGRESS, "no progress")]

    def _failed(self, kind: Kind, words: str) -> Tell:
        return Tell(AttemptFailed(Failure(kind, words), self._retry_from))

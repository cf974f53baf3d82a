"""One round at one member, from its base to its decision: matchmaking, all-reduce and commit put together.

    training ──submit──► matching ──roster──► reducing ──proposal──► preparing ──certificate, bytes──► Concluded
                            ▲                    │  group lost           │
                            └────────────────────┴───────────────────────┘

Rules: there is at most one group (attempt) at a time; a certificate ends the round whatever we are doing; a round's
inputs stay untouched until it is decided, whatever happens to its attempts. A certificate that builds on another
root than ours shows that our state is wrong: it is not applied.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Event, Send, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages import rounds as wire
from shoal.protocol.rounds.agreement.certificate import check_answers, check_commit, check_leave
from shoal.protocol.rounds.agreement.roster import Base, Offer, check_roster
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer
from shoal.protocol.rounds.allreduce.wanted import Wanted
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.commit.commit import Decided
from shoal.protocol.rounds.fetching import Fetching, answer_fetch
from shoal.protocol.rounds.mailbox import Mailbox, replayed
from shoal.protocol.rounds.matchmaking.candidates import MAX_ATTEMPT_STEP
from shoal.protocol.rounds.matchmaking.context import Context, Means
from shoal.protocol.rounds.matchmaking.failure import AttemptFailed, Failed, Failure
from shoal.protocol.rounds.matchmaking.latecomers import Latecomers
from shoal.protocol.rounds.matchmaking.matchmaking import Astray, GroupFormed, Matchmaking
from shoal.protocol.rounds.matchmaking.milestones import Begun
from shoal.protocol.rounds.outcome import Outcome
from shoal.protocol.rounds.stages import attempt_of


@dataclass(frozen=True, slots=True)
class WrongState(Event):
    """Our state is not what the round builds on: so says `peer`, or so a certificate proves."""

    peer: PeerId
    is_proven: bool


class Round:
    """One member's side of one round."""

    def __init__(self, means: Means, base: Base, vote: VoteState, reducer: Reducer) -> None:
        self._means = means
        self._me = means.me
        self._chunks = means.policy.chunks_in(base.round + 1)
        self._reducer = reducer
        self._matching = Matchmaking(means, base, vote)
        self._contribution: Contribute | None = None
        self._contributed_to: list[int] = []  # attempts, in this life
        self._outcome: Outcome | None = None
        self._fetching = Fetching(means, base.round + 1)
        self._late = Latecomers(base.round + 1, means.part)
        self._early = Mailbox(base.voters)  # what came before its roster
        self._asked_at: float | None = None
        self.base = base
        self.vote = vote
        self.attempt: Attempt | None = None
        self._wanted = Wanted()  # of its payloads

    def __repr__(self) -> str:
        return f"Round({self.number}, {self.phase}, {self.vote}, {self._matching}, {self.attempt})"

    @property
    def number(self) -> int:
        """Which round this is."""
        return self.base.round + 1

    @property
    def phase(self) -> str:
        """training, matching, reducing or preparing."""
        if self.attempt is not None:
            return self.attempt.phase
        return "matching" if self._matching.active else "training"

    @property
    def leader(self) -> PeerId | None:
        """Who leads the group that we are in, or that we have asked to join."""
        return self.attempt.leader if self.attempt is not None else self._matching.leader

    def is_ending(self, now: float) -> bool:
        """Whether the round is decided, and its last bytes are on their way to us."""
        return self._outcome is not None and self._outcome.is_near(now, self.attempt)

    def leaves(self) -> tuple[wire.Leave, ...]:
        """The LEAVEs for this round that have reached us."""
        return self._matching.candidates.leaves()

    def waiting_for(self) -> list[PeerId]:
        """Whom this round hangs on, as far as we know."""
        return self.attempt.waiting_for() if self.attempt is not None else self._matching.waiting_for()

    # -- commands -------------------------------------------------------------------------------------------

    def submit(self, now: float, offer: Offer, contribution: Contribute | None) -> list[Effect]:
        """Our inner steps are done; or nobody makes any, and there is no contribution.

        Who has offered nothing may still offer something, also while a group is at work: it counts from the next
        attempt on, and nothing of ours is in those before.
        """
        comes_late = self._contribution is None and contribution is not None
        if not (self.phase == "training" or comes_late) or self._outcome is not None:
            return []
        self._contribution = contribution
        if self.attempt is not None:
            self._matching.keep(offer)
            return []
        return self._digest(now, self._matching.submit(now, offer))

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        attempt = self.attempt
        return self._digest(now, attempt.lose(now, peer) if attempt else self._matching.peer_changed(now))

    def peer_up(self, now: float) -> list[Effect]:
        """Membership has found somebody, or has news of it."""
        return [] if self.attempt is not None else self._digest(now, self._matching.peer_changed(now))

    def give_up(self) -> None:
        """Nothing comes of it here: another state is about to be installed, or we leave."""
        self._wanted.give_up()

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A message of this round."""
        return self._digest(now, self._dispatch(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer of matchmaking."""
        return self._digest(now, self._matching.fire(now, timer)) if self.attempt is None else []

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        effects = self.attempt.tick(now) if self.attempt is not None else []
        return self._digest(now, effects + (self._outcome.fetch(now, self.attempt) if self._outcome else []))

    # -- inside ---------------------------------------------------------------------------------------------

    def _dispatch(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case wire.Join():
                return self._receive_join(now, sender, message)
            case wire.Noted():
                return self._matching.receive_noted(sender, message)
            case wire.Retry():
                return self._receive_retry(now, sender, message.attempt)
            case wire.Call():
                return [] if self.attempt is not None else self._matching.receive_call(now, sender, message)
            case wire.Roster():
                return self._receive_roster(now, sender, message)
            case wire.Commit():
                return self._receive_commit(message)
            case wire.CatchUp():
                return [Tell(WrongState(sender, is_proven=False))] if sender == self._matching.leader else []
            case wire.Leave():
                return self._receive_leave(now, message)
            case wire.Fetch():
                return answer_fetch(self._means, now, sender, message)
            case wire.Fetched():
                return self._receive_fetched(now, sender, message)
            case wire.Busy(attempt=0):
                self._fetching.put_off(now, sender, message)
                return []
        return self._receive_in_attempt(now, sender, message)

    def _receive_fetched(self, now: float, sender: PeerId, message: wire.Fetched) -> list[Effect]:
        is_new = self._means.shelf.take(sender, message)
        if is_new:
            self._fetching.arrived(now, sender)
        return self.attempt.fetched(now, sender, message, is_new) if self.attempt is not None else []

    def _receive_join(self, now: float, sender: PeerId, join: wire.Join) -> list[Effect]:
        if join.peer != sender:
            raise RemoteError(f"sent a JOIN in the name of {join.peer}", sender)
        attempt = self.attempt
        if attempt is None:
            return self._matching.receive_join(now, join)
        self._matching.check_join(join)
        if sender in attempt.plan.members and join.attempt == attempt.number:
            return attempt.receive(now, sender, wire.Ask(join.round, join.part, 0))
        return [*self._late.note(sender, join.attempt), *attempt.overtaken(now, sender, join.attempt)]

    def _receive_retry(self, now: float, sender: PeerId, number: int) -> list[Effect]:
        attempt = self.attempt
        return attempt.overtaken(now, sender, number) if attempt else self._matching.receive_retry(now, sender, number)

    def _receive_roster(self, now: float, sender: PeerId, roster: wire.Roster) -> list[Effect]:
        if self.vote.is_sealed or (self.attempt is not None and roster.attempt <= self.attempt.number):
            return []
        if roster.attempt < self.vote.attempt:
            return [self._retry_message(sender, self.vote.attempt)]
        check_roster(roster, self.base, self._means.policy, self._means.signer)
        check_answers(roster, self.base, self._chunks)
        if self._me not in [join.peer for join in roster.joins]:
            return []
        if not self._matching.has_offer:  # we joined in an earlier life, and have nothing to contribute any more
            return [self._retry_message(sender, self.vote.attempt + 1)]
        return self._begin(now, roster)

    def _receive_commit(self, message: wire.Commit) -> list[Effect]:
        if self._outcome is not None:
            return []
        check_commit(message, self.base, self._chunks, self._means.signer)
        certificate = message.certificate
        if certificate.proposal.base_root != self.base.root:
            return [Tell(WrongState(certificate.ballot.leader, is_proven=True))]
        return [Tell(Decided(certificate, message.chunks))]

    def _receive_leave(self, now: float, leave: wire.Leave) -> list[Effect]:
        """Who is no voter of the last round may be one of this round's proposal."""
        check_leave(leave, self.base, self._chunks)
        if leave in self._matching.candidates.leaves():  # its author may be back by now
            return []
        effects = self._matching.receive_leaves(now, [leave])
        if self.attempt is not None:
            effects += self.attempt.lose(now, leave.peer) + self.attempt.recount(now)
        return effects

    def _receive_in_attempt(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        number = attempt_of(message)
        if self.attempt is not None:
            if isinstance(message, wire.Ask) and sender not in self.attempt.plan.members:
                return self._late.note(sender, number)
            if number == self.attempt.number or isinstance(message, wire.Refuse | wire.Ask):
                return self.attempt.receive(now, sender, message)
        if self.vote.is_sealed:
            return []
        if number > self.vote.attempt + MAX_ATTEMPT_STEP:
            raise RemoteError(f"is in attempt {number}, far from anybody", sender)
        if number >= max(self.vote.attempt, 1):
            self._early.keep(sender, message)
            return self._ask_for_roster(now, sender)
        if isinstance(message, wire.Poll | wire.Prepare | wire.Want | wire.Ask):
            return [self._retry_message(sender, self.vote.attempt)]
        return []

    def _ask_for_roster(self, now: float, sender: PeerId) -> list[Effect]:
        """Somebody is at work in a group whose roster has not reached us."""
        if self._asked_at is not None and now - self._asked_at < self._means.pace.floor:
            return []
        self._asked_at = now
        return [Send(sender, wire.Ask(self.number, self._means.part, 0))]

    def _begin(self, now: float, roster: wire.Roster) -> list[Effect]:
        self._matching.pause(roster.attempt)
        effects = self._matching.receive_leaves(now, roster.leaves)
        self._wanted.give_up()
        self._wanted = Wanted()
        context = Context(self._means, self.base, self.vote, self._matching.candidates.leaves, self._wanted)
        attempt = self.attempt = Attempt(context, roster, self._reducer, self._contribution, self._fetching, now)
        self._contributed_to.append(roster.attempt)
        effects += [Tell(Begun(attempt.plan)), *attempt.start(now)]
        for sender, message in self._early.empty():
            if attempt_of(message) == roster.attempt:
                effects += replayed(attempt.receive, now, sender, message)
        for peer in attempt.plan.members:
            if peer != self._me and not self._means.view.is_alive(peer):
                effects += attempt.lose(now, peer)
        return effects

    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Carry out what our own parts tell us; pass on the rest."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(GroupFormed(roster)):
                    self._late.begin(self._matching.late(roster))
                    done += [Send(join.peer, roster) for join in roster.joins if join.peer != self._me]
                    done += self._digest(now, self._begin(now, roster))
                case Tell(Decided(certificate, chunks)):
                    done += self._decide(now, certificate, chunks)
                case Tell(AttemptFailed(reason, attempt)):
                    done += self._digest(now, self._retry(now, reason, attempt))
                case Tell(Astray()):
                    done.append(Tell(WrongState(self._me, is_proven=False)))
                case _:
                    done.append(effect)
        done += self._conclude()
        self._means.outbox.note(now, done)
        return done

    def _retry(self, now: float, reason: Failure, number: int) -> list[Effect]:
        if self.attempt is None or self._outcome is not None:
            return []
        self._wanted.give_up()
        failed, self.attempt = self.attempt.number, None
        return [Tell(Failed(failed, reason)), *self._matching.enter(now, max(number, failed + 1))]

    def _decide(self, now: float, certificate: wire.Certificate, chunks: tuple[wire.ChunkRef, ...]) -> list[Effect]:
        if self._outcome is not None:
            return []
        self._outcome = Outcome(certificate, chunks, self._means, self._fetching)
        if certificate.ballot.leader != self._me:
            return self._outcome.fetch(now, self.attempt)
        group = self.attempt.plan.members if self.attempt is not None else ()
        told = dict.fromkeys((*certificate.proposal.members, *group, *self._late.peers))
        return [Send(peer, wire.Commit(certificate, chunks)) for peer in told if peer != self._me]

    def _conclude(self) -> list[Effect]:
        concluded = self._outcome.conclude(self._me, self._contributed_to) if self._outcome is not None else None
        if concluded is None:
            return []
        self._wanted.conclude()
        self._outcome = self.attempt = None
        return [Tell(concluded)]

    def _retry_message(self, to: PeerId, attempt: int) -> Send:
        return Send(to, wire.Retry(self.number, self._means.part, attempt))

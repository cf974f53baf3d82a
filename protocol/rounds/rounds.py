"""The rounds of one part of a run, one after the other.

    open(base) ──► Round ──► Committed ──► the application applies it ──► applied(root) ──► next Round
       ▲             └─────► Behind ─────► state transfer ─┐
       └───────────────────────────────────────────────────┘

Rules: messages of decided rounds are answered with what was decided; messages of the next round wait until we are
there; whoever is more than one round ahead makes us catch up. What was voted outlives its round: a member that goes
back to an earlier state takes up its votes again, and votes in no round before the last in which it has.
A LEAVE counts in the round that it names, and is a reason neither to wait nor to catch up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.protocol.base.effects import Effect, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer, check_signature
from shoal.protocol.base.wire import Message
from shoal.protocol.messages import rounds as wire
from shoal.protocol.rounds.afterwards import answer_late
from shoal.protocol.rounds.agreement.certificate import next_base
from shoal.protocol.rounds.agreement.roster import Base, Offer, Policy
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer
from shoal.protocol.rounds.allreduce.shelf import Decision, Shelf
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.lookout import Lookout
from shoal.protocol.rounds.mailbox import Mailbox, replayed
from shoal.protocol.rounds.matchmaking.context import Means, View
from shoal.protocol.rounds.matchmaking.failure import Failed
from shoal.protocol.rounds.matchmaking.leaving import Departure, Goodbyes, last_of_interest
from shoal.protocol.rounds.matchmaking.milestones import Aborted, Behind, Committed
from shoal.protocol.rounds.outcome import Concluded
from shoal.protocol.rounds.rest import Rest, draft_of, put_back, recall
from shoal.protocol.rounds.round import Round, WrongState
from shoal.protocol.rounds.stages import round_of

TICK = 1.0  # seconds


class Rounds:
    """One member's rounds in one part of one run."""

    def __init__(
        self,
        me: PeerId,
        part: int,
        signer: Signer,
        view: View,
        policy: Policy,
        reducer: Callable[[int], Reducer],
        restored: wire.VoteRecord | None = None,
        rest: Rest | None = None,
    ) -> None:
        """`restored` and `rest` are what an earlier life of ours has left."""
        self.shelf = Shelf()
        spread = Estimate(initial=10.0, floor=0.5, ceiling=600.0)
        pace = Estimate(initial=4.0, floor=2.0, ceiling=10.0)  # a reminder costs words only, so it may come soon
        self._means = Means(me, part, signer, view, policy, self.shelf, Outbox(), spread, pace)
        self._reducer = reducer  # opens the reducer of a round
        self._voted = restored  # the last round in which we voted, and how
        self._round: Round | None = None
        self._applying: Decision | None = None
        self._doubted: Base | None = None  # what somebody doubted that we should stand on; once is enough
        self._ahead = Mailbox(())  # of the round after the current one
        self._goodbyes = Goodbyes(self._means)
        self._draft = recall(rest, self.shelf, self._goodbyes)  # bytes of what an earlier life voted for
        self._lookout = Lookout()
        self._token = 0
        self._has_left = False

    def __repr__(self) -> str:
        return f"Rounds({self._round}, applying={self._applying is not None}, {self.shelf}, {self._ahead})"

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def base(self) -> Base | None:
        """What the current round builds on; None before the state is here and while a commit is applied."""
        return self._round.base if self._round is not None else None

    @property
    def phase(self) -> str:
        """A word for status: syncing, training, matching, reducing, preparing or applying."""
        if self._round is None:
            return "applying" if self._applying else "syncing"
        return self._round.phase

    @property
    def attempt(self) -> Attempt | None:
        """The group we are in, if there is one."""
        return self._round.attempt if self._round is not None else None

    @property
    def leader(self) -> PeerId | None:
        """Who leads the current round, as far as we know."""
        return self._round.leader if self._round is not None else None

    def leaves(self) -> tuple[wire.Leave, ...]:
        """The LEAVEs for the current round that have reached us."""
        return self._round.leaves() if self._round is not None else ()

    def waiting_for(self) -> list[PeerId]:
        """Whom the current round hangs on."""
        return self._round.waiting_for() if self._round is not None else []

    @property
    def departure(self) -> Departure:
        """What it would mean if we went now."""
        undecided, voters = self._undecided()
        left = tuple(leave.peer for leave in self._goodbyes.of(undecided))
        vote = self._round.vote if self._round is not None else None
        return Departure(self._means, self._voted, vote, undecided, voters, left)

    def kept(self) -> tuple[tuple[wire.Leave, ...], tuple[wire.Fetched, ...]]:
        """For our next life: who has signed off, and the bytes of what we have voted for in the undecided round."""
        vote = self._round.vote if self._round is not None else None
        return self._goodbyes.all(), draft_of(self.shelf, vote) or self._draft

    # -- commands -------------------------------------------------------------------------------------------

    def open(self, now: float, base: Base) -> list[Effect]:
        """Stand on `base`: at the start of a run, after catching up, and after each commit."""
        self._remember_votes()
        vote = VoteState.resume(base.round + 1, self._means.part, self._voted)
        reducer = self._reducer(base.round + 1)
        self.shelf.open(reducer)
        self._means.outbox.open()
        self._draft = put_back(self._draft, base.round + 1, self.shelf)
        self._round, self._applying = Round(self._means, base, vote, reducer), None
        self._token += 1
        if (known := self.shelf.decision(base.round + 1)) is not None:  # we have been here before
            return self._commit(known, (False,) * len(known.chunks))
        effects: list[Effect] = [self._wake(), *self._look_ahead()]
        self._goodbyes.keep_only(base.round + 1, last_of_interest(base.round + 1, self._voted))
        kept = [(leave.peer, leave) for leave in self._goodbyes.of(base.round + 1)]
        early, self._ahead = self._ahead, Mailbox(base.voters)
        for sender, message in (*kept, *early.empty()):
            effects += replayed(self.receive, now, sender, message)
        return effects

    def submit(self, now: float, offer: Offer, contribution: Contribute | None) -> list[Effect]:
        """Our inner steps are done: `contribution(chunk)` encodes our part of a chunk."""
        if self._round is None or self._has_left:
            return []
        return self._digest(self._round.submit(now, offer, contribution))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """The committed vector is applied and read back; `root` is the new state root."""
        assert self._applying is not None
        return self.open(now, next_base(self._applying.certificate.proposal, root))

    def suspend(self) -> None:
        """Another state is about to be installed: nothing happens until `open`."""
        self._remember_votes()
        if self._round is not None:
            self._round.give_up()
        self._round = self._applying = None

    def leave(self, now: float) -> list[Effect]:
        """Sign off from every round that may count us among its voters, whatever we are doing; we are silent then."""
        if self._has_left:
            return []
        self._has_left = True
        self._remember_votes()
        if self._round is not None:
            self._round.give_up()
        leaves = self.departure.last_words()
        if self._voted is None or not leaves:
            return []
        self._voted = dataclasses.replace(self._voted, left=leaves[-1].round)
        goodbyes = [Send(peer, leave) for peer in self._means.view.alive() for leave in leaves]
        return [Persist(f"vote-{self._means.part}", self._voted), *goodbyes]

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        if self._round is None or self._has_left:
            return []
        return self._digest(self._round.peer_down(now, peer))

    def peer_up(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has found `peer`, or has news of it."""
        if self._round is None or self._has_left:
            return []
        return self._digest(self._round.peer_up(now))

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this part's rounds."""
        number = round_of(message)
        if self._has_left:
            return []
        if isinstance(message, wire.Leave):
            if sender != message.peer and self._goodbyes.has(message):  # passed on
                return []
            check_signature(message, message.peer, self._means.signer, shown_by=sender)
            return self._receive_leave(now, message)
        if isinstance(message, wire.Join):
            self._means.followers.note(sender, number, self._undecided()[0] - 1)
        if self.shelf.decision(number) is not None:
            return answer_late(self._means, now, sender, message)
        if self._round is None or number == self._round.number + 1:
            self._ahead.keep(sender, message)
            return self._hold_on(now, sender, message)
        if number < self._round.number:
            return [Send(sender, wire.CatchUp(number, self._means.part))] if isinstance(message, wire.Ask) else []
        if number > self._round.number:
            return self._fall_behind(sender, message, number)
        if isinstance(message, wire.CatchUp) and self._lookout.has_asked(sender):  # it has applied this round, and more
            return [Tell(Behind(sender, number + 1))]
        return self._digest(self._round.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer of ours or of matchmaking."""
        if self._round is None or self._has_left:
            return []
        if timer.core == "matchmaking":
            return self._digest(self._round.fire(now, timer))
        if timer.token != self._token:
            return []
        return [self._wake(), *self._digest(self._round.tick(now)), *self._look_ahead()]

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits at this node: it was sent, or dropped together with its connection."""
        if sent:
            self._means.outbox.sent(now, to, message)
        else:
            self._means.outbox.dropped(to, message)

    # -- inside ---------------------------------------------------------------------------------------------

    def _receive_leave(self, now: float, leave: wire.Leave) -> list[Effect]:
        """Somebody has signed off from a round: this one, one that is over, or one to come."""
        undecided, voters = self._undecided()
        if not self._goodbyes.admit(leave, last_of_interest(undecided, self._voted), voters):
            return []
        effects: list[Effect] = []
        if self._round is not None and leave.round == self._round.number:
            effects = self._digest(self._round.receive(now, leave.peer, leave))
        self._goodbyes.keep(leave)
        return effects

    def _undecided(self) -> tuple[int, tuple[PeerId, ...]]:
        """The lowest round that is not decided here, and its voters."""
        if self._round is not None:
            return self._round.number, self._round.base.voters
        applying = self._applying
        return (applying.round + 1, applying.certificate.proposal.voters) if applying is not None else (0, ())

    def _hold_on(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Somebody follows us into the next round, which we shall be in as soon as the last bytes of this one came."""
        if not isinstance(message, wire.Join) or self._round is None or not self._round.is_ending(now):
            return []
        return [Send(sender, wire.Noted(message.round, message.part, message.attempt))]

    def _fall_behind(self, sender: PeerId, message: Message, number: int) -> list[Effect]:
        """Somebody is rounds ahead of us; if it wants us to lead, it had better ask another."""
        effects: list[Effect] = [Tell(Behind(sender, number))]
        if isinstance(message, wire.Join):
            effects.append(Send(sender, wire.Retry(number, self._means.part, message.attempt + 1)))
        return effects

    def _digest(self, effects: list[Effect]) -> list[Effect]:
        """Put what the round tells us in the words of the run."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(Concluded(decision, counted)):
                    done += self._commit(decision, counted)
                case Tell(Failed(attempt, reason)):
                    assert self._round is not None
                    done.append(Tell(Aborted(self._round.number, attempt, reason)))
                case Tell(WrongState(peer, is_proven)):
                    done += self._doubt(peer, is_proven)
                case _:
                    done.append(effect)
        return done

    def _doubt(self, peer: PeerId, is_proven: bool) -> list[Effect]:
        """Catch up once on somebody's word; if that leads us back to where we stand, only proof counts."""
        if self._round is None or (self._round.base == self._doubted and not is_proven):
            return []
        self._doubted = self._round.base
        return [Tell(Behind(peer, self._round.number))]

    def _commit(self, decision: Decision, counted: tuple[bool, ...]) -> list[Effect]:
        self._remember_votes()
        self._round, self._applying = None, decision
        self._draft = tuple(each for each in self._draft if each.round > decision.round)
        self.shelf.decide(decision)
        return [Tell(Committed(decision, counted))]

    def _remember_votes(self) -> None:
        vote = self._round.vote if self._round is not None else None
        if vote is not None and vote.attempt and (self._voted is None or vote.round >= self._voted.round):
            self._voted = vote.record()

    def _look_ahead(self) -> list[Effect]:
        if self._round is None or self._has_left:
            return []
        return self._lookout.look(self._means.view, self._round.number, self._means.part)

    def _wake(self) -> Wake:
        return Wake(TICK, Timer("rounds", "tick", self._token, str(self._means.part)))

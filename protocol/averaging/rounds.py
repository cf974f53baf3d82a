"""The rounds of one part of a run, one after the other, as the log decides them.

    open(base) ──► Round ──► Committed ──► the application applies it ──► applied(root) ──► next Round
       ▲             └─────► Behind ─────► state transfer ─┐
       └───────────────────────────────────────────────────┘

The log may be ahead of us: a result that is decided is applied once its means are here and our state is the one that it
was made on. Messages of decided rounds are answered with what was decided; messages of the next round wait until we are
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shoal.protocol.averaging.context import Context, LogView, Outcome
from shoal.protocol.averaging.events import (
    Behind,
    Committed,
    Lapsed,
    LogEnds,
    Lost,
    Reviewed,
    WrongState,
)
from shoal.protocol.averaging.exchange import Self
from shoal.protocol.averaging.mailbox import replayed
from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.averaging.owners import PLACES
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.averaging.replay import base_after, base_without, outcome_of
from shoal.protocol.averaging.round import Round
from shoal.protocol.averaging.shelf import Decision, Shelf
from shoal.protocol.base.effects import Effect, Send, Tell, Timer, Wake, Withdraw
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.masks import is_mask
from shoal.protocol.base.wire import Message
from shoal.protocol.log.register import has_member, state_of
from shoal.protocol.membership.view import View
from shoal.protocol.messages import averaging as wire
from shoal.protocol.messages.log import PartState, Register, Result, Roster

TICK = 1.0  # seconds


class Rounds:
    """One member's rounds in one part of one run."""

    def __init__(
        self,
        us: Self,
        view: View,
        policy: Policy,
        log: LogView,
        reducer: Callable[[int], Reducer],
        spread: Estimate | None = None,
    ) -> None:
        """`spread`: what was learned already of how much later than the first one the last is ready."""
        self.shelf = Shelf()
        self.outbox = Outbox(key_of)
        spread = spread or Estimate(initial=10.0, floor=0.5, ceiling=600.0)
        pace = Estimate(initial=4.0, floor=2.0, ceiling=10.0)  # a reminder costs words only, so it may come soon
        training = Estimate(initial=0.0, floor=0.0, ceiling=86_400.0)
        lasting = Estimate(initial=0.0, floor=0.0, ceiling=3600.0)
        self._context = Context(us, view, policy, log, self.shelf, self.outbox, spread, pace, training, lasting)
        self._us = us
        self._reducer = reducer  # opens the reducer of a round
        self._outcomes: dict[int, Outcome] = {}  # decided, and not applied here
        self._voided: set[int] = set()  # rounds from ours on whose result was undone
        self._review: tuple[Digest, Result, bool] | None = None
        self._applying: tuple[int, Decision | None] | None = None  # round, and what it decided
        self._before = Base(0, 0, Digest(b""), Digest(b""))  # the base that is being applied to
        self._doubted: Base | None = None  # what somebody doubted that we should stand on; once is enough
        self._draft: tuple[wire.Mean | wire.Table, ...] = ()  # means and tables that an earlier process of ours had
        self._token = 0
        self._is_new = True  # we were counted in no round since the start, or since another state was installed
        self.round: Round | None = None

    def __repr__(self) -> str:
        return f"Rounds({self.round}, applying={self._applying is not None}, decided={sorted(self._outcomes)})"

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def base(self) -> Base | None:
        """What the current round builds on; None before the state is here and while a result is applied."""
        return self.round.base if self.round is not None else None

    @property
    def phase(self) -> str:
        """A word for status: syncing, training, matching, reducing, deciding or applying."""
        if self.round is None:
            return "applying" if self._applying else "syncing"
        return self.round.phase

    @property
    def is_applying(self) -> bool:
        """Whether the application was told of a result, or that there is none, and has not said `applied` yet."""
        return self._applying is not None

    @property
    def state(self) -> PartState:
        """Where the log stands with this part."""
        return state_of(self._context.log.register, self._us.part)

    @property
    def held_round(self) -> int | None:
        """The round after which the state is that is here, or that is being applied; None: there is none."""
        if self.round is not None:
            return self.round.base.round
        return self._applying[0] if self._applying is not None else None

    def is_next_coming(self, now: float) -> bool:
        """Whether the current round is decided, and its means are not looked for in vain."""
        return self.round is not None and self.round.is_coming(now)

    def waiting_for(self) -> list[PeerId]:
        """Whom the current round hangs on."""
        return self.round.waiting_for() if self.round is not None else []

    def roster(self, round: int) -> tuple[PeerId, ...]:
        """Who takes part in a round, as far as we know: this one, or one whose means we still keep."""
        if self.round is not None and self.round.number == round:
            return self.round.exchange.roster
        decision = self.shelf.decision(round)
        return decision.roster if decision is not None else ()

    # -- commands -----------------------------------------------------------------------------------------------

    def open(self, now: float, base: Base) -> list[Effect]:
        """Stand on `base`: at the start of a run, after catching up, and after each result."""
        number = base.round + 1
        reducer = self._reducer(number)
        self.shelf.open(reducer)
        self.outbox.open()
        self.round, self._applying = Round(self._context, base, reducer, now, self._is_new), None
        self._outcomes = {round: each for round, each in self._outcomes.items() if round > base.round}
        self._token += 1
        effects: list[Effect] = [self._wake()]
        for record in (each for each in self._draft if each.round == number):
            if isinstance(record, wire.Mean):
                self.round.exchange.recall(record)
            else:
                self.shelf.put_table(record.means)
        self._draft = tuple(each for each in self._draft if each.round > number)
        self._voided = {round for round in self._voided if round >= base.round}
        if number in self._voided or self._is_undone(base):
            return [*effects, *self._lapse(number)]
        if (known := self.shelf.decision(number)) is not None:  # we have been here before
            return [*effects, *self._commit(known, (False,) * len(known.means))]
        if self.state.round == base.round:
            effects += self._digest(self.round.seat(now, self.state.roster))
        return effects + self._replay(now) + self._follow(now)

    def _replay(self, now: float) -> list[Effect]:
        """Take what came too early; what is still too early is kept again."""
        early = self._context.early.empty(self._context.log.register.voters)
        return [each for sender, mail in early for each in replayed(self.receive, now, sender, mail)]

    def submit(self, now: float, ready: Ready, contribution: Contribute | None) -> list[Effect]:
        """Our inner steps are done: `contribution(chunk)` encodes our part of a chunk."""
        return self._digest(self.round.submit(now, ready, contribution)) if self.round is not None else []

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """What we were told of is applied and read back; `root` is the new state root."""
        assert self._applying is not None
        round, decision = self._applying
        if decision is None:
            return self.open(now, base_without(self._before, round))
        opened = self.open(now, self.base_with(decision, root))
        return [*opened, *(self._doubt(is_proven=True) if round in self._voided else [])]

    def base_with(self, decision: Decision, root: Digest) -> Base:
        """What we stand on once the result that we were told of is applied, and the new state has this root."""
        return base_after(self._before, decision, root)

    def kept(self, now: float, round: int) -> list[Effect]:
        """The means of a round's result are on our disk, and survive a power cut."""
        if round != self.shelf.unkept:
            return []
        self.shelf.unkept = None
        return self.look(now)

    def suspend(self) -> list[Effect]:
        """Another state is about to be installed: nothing happens until `open`."""
        left, self.round, self._applying, self._is_new = self.round, None, None, True
        return [Withdraw(self._us.part, left.number)] if left is not None else []

    def switch(self) -> None:
        """The log goes on elsewhere: what it had decided counts no more. `forget` follows, once nothing is applied."""
        self._outcomes.clear()
        self._voided.clear()
        self._review = self._doubted = None
        self._context.forget_rounds()
        self._draft = ()

    def forget(self) -> list[Effect]:
        """The state is another one: nothing that was kept for the others counts any more."""
        self.shelf.forget()
        self._context.early.empty(())
        return self.suspend()

    def link_lost(self, peer: PeerId) -> None:
        """A connection with `peer` is lost."""
        if self.round is not None:
            self.round.link_lost(peer)

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        return self._digest(self.round.peer_down(now, peer)) if self.round is not None else []

    def look(self, now: float) -> list[Effect]:
        """Something outside has changed: who is there, who proposes, or on which branch the log goes on."""
        if self.round is None:
            return []
        if self.round.branch != self._us.branch and not self.round.is_decided:
            return self._open_anew(now, self.round)
        return self._digest(self.round.look(now))

    def _open_anew(self, now: float, left: Round) -> list[Effect]:
        """What was said about this round on the branch before is none of it; what we bring to it stays the same."""
        opened, own = self.open(now, left.base), left.submitted
        return opened + (self.submit(now, *own) if own is not None else [])

    def recall_means(self, records: Iterable[wire.Mean | wire.Table]) -> None:
        """Means and tables of rounds that were not applied when an earlier process of ours ended."""
        self._draft = tuple(records)

    def recall(self, decided: Mapping[int, Outcome | None]) -> None:
        """What the log had decided, or undone, when we started; some of it is not applied here."""
        self._outcomes.update({round: each for round, each in decided.items() if each is not None})
        self._voided |= {round for round, each in decided.items() if each is None}

    # -- the log ------------------------------------------------------------------------------------------------

    def committed(self, now: float, number: int, body: Message, before: Register) -> list[Effect]:
        """An entry was decided after the register `before`."""
        if (ended := outcome_of(before, number, body, self._us.part)) is not None:
            round, outcome = ended
            if outcome is None:
                return self._void(round)  # our log may be further already
            self._outcomes[round], self._review = outcome, None
            return self._follow(now)
        match body:
            case Roster(part=self._us.part) if self.round is not None and self.round.base.round == self.state.round:
                return [*self._digest(self.round.seat(now, body.seats)), *self._replay(now)]
        return self.look(now)

    def review(self, now: float, entry: Digest, result: Result, is_bound: bool) -> list[Effect]:
        """May we vote for this result? Answered once we know, perhaps after what comes before it is applied."""
        self._review = (entry, result, is_bound)
        return self._hand_review(now)

    def _hand_review(self, now: float) -> list[Effect]:
        if self._review is None or self.round is None or self._review[1].round != self.round.number:
            return []
        review, self._review = self._review, None
        return self._digest(self.round.review(now, *review))

    def _refuse_what_follows(self, lost: int) -> list[Effect]:
        """A result on one whose bytes are lost: whoever stands on that one may be bound to it alone."""
        if self._review is None or not self._review[2] or self._review[1].base != lost:
            return []
        entry, self._review = self._review[0], None
        return [Tell(Reviewed(entry, False))]

    def _follow(self, now: float) -> list[Effect]:
        """Go where the log is: to what it has decided about the current round, or to a later state."""
        if self.round is None:
            return []
        outcome = self._outcomes.get(self.round.number)
        if outcome is not None:
            return self._digest(self.round.decided(now, outcome)) + self._if_far_behind()
        return self._if_far_behind() + self._hand_review(now)

    def _if_far_behind(self) -> list[Effect]:
        """Further than the last result, whose means the voters hold for sure; or not on the state it was made on."""
        if self.round is None:
            return []
        number, newest = self.round.number, self.state.round
        outcome = self._outcomes.get(number)
        is_astray = outcome is not None and outcome.result.base_root != self.round.base.root
        is_behind = newest > number or (newest == number and outcome is None)
        return [Tell(Behind(newest))] if is_astray or is_behind else []

    def _void(self, round: int) -> list[Effect]:
        """The result of `round` is undone. Who has applied it stands on a state that there is not."""
        self._outcomes.pop(round, None)
        self._voided.add(round)
        self.shelf.undo(round)
        if self.round is None:
            return []
        if self.round.base.round >= round:
            return self._doubt(is_proven=True)
        return self._lapse(round) if self.round.number == round else []

    def _is_undone(self, base: Base) -> bool:
        """Whether the result of the round after `base` was undone, by entries that were not shown to us."""
        state = self.state
        return (state.round, state.result, state.root) == (base.round + 1, state.before, base.root)

    def _lapse(self, round: int) -> list[Effect]:
        assert self.round is not None
        self._before, self.round, self._applying = self.round.base, None, (round, None)
        return [Withdraw(self._us.part, round), Tell(Lapsed(round))]

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this part's rounds."""
        assert isinstance(message, wire.AVERAGING_MESSAGES)
        number = message.round
        if isinstance(message, wire.Offer | wire.Give | wire.GetTable):
            self._hear(sender, message)
        is_over = self.round is None or number < self.round.number
        if self.shelf.decision(number) is not None or (is_over and self.shelf.served(number) is not None):
            return self._answer_late(now, sender, message)
        if self.round is not None and number == self.round.number:
            if not self._is_early(sender, message):
                return self._digest(self.round.receive(now, sender, message))
        elif self.round is not None and not self._is_for_later(message):
            if isinstance(message, wire.Give | wire.GetTable):
                is_behind = number < self.round.number  # then it may wait for what was undone meanwhile
                return [self._refuse(sender, number), *([Tell(LogEnds(sender, 0))] if is_behind else [])]
            return [Tell(LogEnds(sender, message.number))] if isinstance(message, wire.Offer) else []
        self._context.early.keep(sender, message)
        return []

    def _hear(self, sender: PeerId, message: wire.Offer | wire.Give | wire.GetTable) -> None:
        """Note in which round a member is; of strangers nothing is kept."""
        if not has_member(self._context.log.register, sender):
            return
        self._context.followers.heard(sender, message.round)
        if isinstance(message, wire.Offer):
            self._context.followers.note(sender, message.round, self.state.round)

    def _is_for_later(self, message: wire.AVERAGING_MESSAGES) -> bool:
        """Whether it is of the next round, or brings something of the one in which the others are."""
        assert self.round is not None
        is_next, is_theirs = message.round == self.round.number + 1, message.round == self.state.round + 1
        return is_next or (is_theirs and not isinstance(message, wire.Give | wire.GetTable))

    def _refuse(self, sender: PeerId, round: int) -> Send:
        """That there is nothing here of a round."""
        return Send(sender, self._context.progress(round, is_waiting=True, is_queued=False))

    def _is_early(self, sender: PeerId, message: Message) -> bool:
        """Whether it is of somebody who is in a roster that we have not seen yet."""
        assert self.round is not None
        roster = self.round.exchange.roster
        if isinstance(message, wire.Mean):
            place, is_whole = message.made.epoch % PLACES, is_mask(message.made.mask, len(roster))
            is_strange = message.made.owner not in roster or place >= len(roster) or not is_whole
            return is_strange and not self.shelf.was_asked(message, sender)
        return isinstance(message, wire.Contribution | wire.Have) and sender not in roster

    def _answer_late(self, now: float, sender: PeerId, message: wire.AVERAGING_MESSAGES) -> list[Effect]:
        """The answer to somebody who is still in a round that we have applied, or are applying."""
        part, round, effects = self._us.part, message.round, list[Effect]()
        match message:
            case wire.Offer():
                return [Tell(LogEnds(sender, message.number))]
            case wire.GetTable():
                means = self.shelf.find_table(round, message.table)
                return [
                    Send(sender, wire.Table(part, round, means)) if means is not None else self._refuse(sender, round)
                ]
            case wire.Give():
                known = self.shelf.served(round)
                means = known.means if known is not None else ()  # the disk may have forgotten it just now
                named = [(chunk, means[chunk].hash) for chunk in message.means if chunk < len(means)]
                for chunk, hash in (*message.hashes, *named):
                    mean = self.shelf.find(part, round, chunk, hash)
                    effects += [Send(sender, mean, is_late=not mean.payload)] if mean is not None else []
                fresh = self.outbox.fresh(now, effects)
                self.outbox.note(now, fresh)
                progress = self._context.progress(round, is_waiting=not effects, is_queued=len(fresh) < len(effects))
                return [*fresh, Tell(LogEnds(sender, 0)), *([] if fresh else [Send(sender, progress)])]
        return []

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A second is over."""
        if self.round is None or timer.token != self._token:
            return []
        return [self._wake(), *self._digest(self.round.tick(now)), *self._if_far_behind()]

    def left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits at this node: it was sent, or dropped together with its connection."""
        if sent:
            self.outbox.sent(now, to, message)
        else:
            self.outbox.dropped(to, message)

    # -- inside -------------------------------------------------------------------------------------------------

    def _digest(self, effects: list[Effect]) -> list[Effect]:
        """Put what the round tells us in the words of the run."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(Committed(decision, counted)):
                    self._is_new &= not (any(counted) or self._has_kept(decision))
                    self.shelf.unkept = decision.round
                    done += self._commit(decision, counted)
                case Tell(WrongState(is_proven)):
                    done += self._doubt(is_proven)
                case Tell(Lost(entry)):
                    done += [effect, *self._refuse_what_follows(entry)]
                case _:
                    done.append(effect)
        return done

    def _has_kept(self, decision: Decision) -> bool:
        """Whether this peer was in a round in which it had nothing to contribute, as it trains nothing."""
        brought = self.round.submitted if self.round is not None else None
        return brought is not None and brought[1] is None and self._us.me in decision.roster

    def _doubt(self, is_proven: bool) -> list[Effect]:
        """Catch up once on somebody's word; if that leads us back to where we stand, only proof counts."""
        if self.round is None or (self.round.base == self._doubted and not is_proven):
            return []
        self._doubted = self.round.base
        return [Tell(Behind(self.round.number))]

    def _commit(self, decision: Decision, counted: tuple[bool, ...]) -> list[Effect]:
        assert self.round is not None
        self._before, self.round, self._applying = self.round.base, None, (decision.round, decision)
        self.shelf.decide(decision)
        return [Tell(Committed(decision, counted))]

    def _wake(self) -> Wake:
        return Wake(TICK, Timer("rounds", "tick", self._token, str(self._us.part)))


def key_of(message: Message) -> tuple[int, tuple[int, Digest | None]] | None:
    """What a payload is, without its bytes: a contribution counts in any epoch, and a mean has its hash."""
    match message:
        case wire.Contribution():
            return message.round, (message.chunk, None)
        case wire.Mean():
            return message.round, (message.chunk, message.made.hash)
    return None

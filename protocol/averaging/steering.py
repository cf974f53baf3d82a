"""What the proposer does for a round: who takes part, who is called, who is gone on without, who owns what instead.

Rules:
- A round begins once enough members have offered; all who may come are waited for, as below. Who comes later is added
  by an entry as long as the round still waits for somebody, else by the result, for the next round.
- Patience begins with the first who has trained something: who has nothing to offer hurries nobody.
- How long members take is learned by all who hear of it: so whoever proposes next, after a death, knows it too.
- Whoever has not offered by then is called soon to hand in what it has: so the fast hardly wait, and what the slow
  have done counts all the same. It is gone on without when twice the learned patience is over. A policy may give the
  slow some slack: so much patience at least.
- A called worker finishes the step that it is in, which may take far longer than the others are apart. So it has a
  quarter of the time that the first one trained, from the call on: the others train for four fifths of the time or so.
  That need not be learned, as the wait ends with the last offer. Who does not come even so is not given that time in
  the rounds that follow, in more of them each time (`Context.late`); nor is who is on its way to our state.
- Chunks of a lost owner get a higher epoch.
- Who lacks means of the last round is waited for longer: as long as that round took, at least.
- The next round is for all who took part in this one or stand ready, and live, and for some who came just too late; but
  not for who was given up as it brought nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.averaging.apart import ways_between
from shoal.protocol.averaging.context import Context
from shoal.protocol.averaging.events import HandIn, Waiting, Want
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.policy import Base
from shoal.protocol.averaging.shares import Claim, Load, share
from shoal.protocol.averaging.shelf import table_digest
from shoal.protocol.base.effects import Effect, Persist, Send, Tell
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.masks import common, mask_of, masked
from shoal.protocol.log.register import MAX_SEATS, state_of
from shoal.protocol.messages.averaging import Call, Direct, Made, Offer, Table
from shoal.protocol.messages.log import PartState, Result, Roster, Seat

CLOSE = 2  # patiences until the proposer goes on without those who have not offered
BEHIND = 16  # and, at least, without those who still lack means of the last round
WAIT = 0.1  # of the time in which the first has trained: how long it waits, about, until the others are called
FINISH = 0.25  # of the same time: how long they may then take to finish their step, if the patience is less
REPEAT = 2.0  # seconds between two repeats of what it has directed


class Steering:
    """One member's part in proposing for one round, now or later."""

    def __init__(
        self, context: Context, base: Base, exchange: Exchange, offers: dict[PeerId, Offer], now: float
    ) -> None:
        self._context = context
        self._us = context.us
        self._base = base
        self._exchange = exchange
        self._offers = offers  # all that fit our state, of members in the roster or not
        self._begun_at = now
        self._opened_at: float | None = None  # when the first came who has trained; others stand ready at once
        self._trained_for = 0.0  # how long the first one took, as far as that is usual
        self._called_at: float | None = None
        self._calls: dict[PeerId, tuple[float, float]] = {}  # of who is missing: when it was called first, is next
        self._directed_at = 0.0
        self._here_at: dict[PeerId, float] = {}  # when somebody was last seen to be one round behind
        self._wanted: tuple[int, int] | None = None  # the entry's number and the view in which we last wanted a result
        self._reason = ""
        self._learned = False
        self._counted = 0  # offers when we last looked whether any is missing

    @property
    def round(self) -> int:
        """Which round."""
        return self._base.round + 1

    def patience(self) -> float:
        """Seconds after the first one that are not strange for those who still train.

        Few rounds in which all happened to be ready at once say little: each halves what is waited without any.
        """
        spread = self._context.spread
        return max(spread.deadline(), spread.initial * 0.5**spread.samples, self._context.policy.slack)

    def _called_after(self) -> float:
        """Seconds after which they are called to hand in; in the first rounds of a run workers may still load."""
        assert self._opened_at is not None
        spread, policy = self._context.spread, self._context.policy
        soon = min(self.patience(), max(spread.floor, WAIT * (self._opened_at - self._begun_at)))
        return max(soon, spread.initial * 0.5 ** (self.round - policy.first), policy.slack)

    def expected(self) -> list[PeerId]:
        """Live members in the round, but for those that are far behind, and those who stand on its base."""
        known = [member.peer for member in self._context.log.register.members]
        here = [peer for peer in known if self._is_here(peer) and not self._is_far(peer)]
        return [peer for peer in here if self._is_seated(peer) or self._is_ready(peer)]

    def missing(self) -> list[PeerId]:
        """Those of them who have offered nothing yet."""
        return [peer for peer in self.expected() if peer not in self._offers]

    def steer(self, now: float) -> list[Effect]:
        """Whatever is to be done now."""
        if self._opened_at is None and any(offer.weight for offer in self._offers.values()):
            self._open(now)
        self._learn(now)
        self._learn_who_is_late(now)
        if not self._context.log.leads or self._part.round != self._base.round:
            return []
        effects = self._call(now)
        effects += self._seat(now) if not self.is_open else self._seat_more()
        if self.is_open:
            effects += self._leave_out(now) + self._replace_lost(now) + self._repeat(now) + self._propose()
        return effects

    def _open(self, now: float) -> None:
        took, training = now - self._begun_at, self._context.training
        self._opened_at, self._trained_for = now, min(took, training.mean)  # nobody may have had a worker for a while
        training.observe(took)

    def direct(self) -> Direct:
        """What we have directed so far in this round, ourselves or as somebody told us."""
        epochs = tuple((chunk, epoch) for chunk, epoch in enumerate(self._exchange.epochs) if epoch)
        return Direct(self._us.part, self.round, tuple(self._exchange.absent), epochs)

    # -- who takes part -----------------------------------------------------------------------------------------

    @property
    def _part(self) -> PartState:
        return state_of(self._context.log.register, self._us.part)

    @property
    def is_open(self) -> bool:
        """Whether the round has enough members to go on."""
        return len(self._part.roster) >= self._context.policy.members_needed(self.round)

    def _is_here(self, peer: PeerId) -> bool:
        return peer == self._us.me or self._context.view.is_alive(peer)

    def _is_seated(self, peer: PeerId) -> bool:
        return any(seat.peer == peer for seat in self._part.roster)

    def _is_far(self, peer: PeerId) -> bool:
        """Whether `peer` cannot come in time, as it was away, and catches up."""
        return peer != self._us.me and peer not in self._offers and self._context.is_far(peer, self._base)

    def _is_ready(self, peer: PeerId) -> bool:
        """Whether `peer` stands on the base of the round, or is about to."""
        is_coming = peer in self._offers or self._context.followers.is_due(peer, self.round)
        return is_coming or self._is_at_our_base(peer)

    def _is_at_our_base(self, peer: PeerId) -> bool:
        """Whether `peer` has the state that the round builds on, by what it says: so it may be training for it."""
        if peer == self._us.me:
            return True
        status = self._context.view.status(peer)
        return status is not None and (status.round, status.history) == (self._base.round, self._base.history)

    def _seat(self, now: float) -> list[Effect]:
        """The first roster that is large enough: of all who have offered, once nobody more is waited for."""
        here = [peer for peer in self.expected() if peer in self._offers or self._is_seated(peer)]
        ready, needed = [peer for peer in here if peer in self._offers], self._context.policy.members_needed(self.round)
        reason = ""
        if len(ready) < needed:
            reason = f"{len(ready)} of at least {needed} members are here"
        elif not any(self._offers[peer].weight for peer in ready):
            reason = "nobody here has trained anything yet"
        is_news = reason not in ("", self._reason) and bool(self._offers)  # else all still train
        effects: list[Effect] = [Tell(Waiting(reason))] if is_news else []
        self._reason = reason if self._offers else ""
        if reason or any(now < self._waits_until(peer) for peer in self.missing()):
            return effects
        return effects + self._want_seats(ready)

    def _seat_more(self) -> list[Effect]:
        """While somebody is still awaited, who stands ready may join the round."""
        if self._exchange.is_under_way or self._exchange.is_complete:
            return []
        doubts = self._context.doubts
        new = [
            peer for peer in self.expected() if not self._is_seated(peer) and not doubts.leaves_out(peer, self.round)
        ]
        return self._want_seats(new) if new else []

    def _want_seats(self, peers: Sequence[PeerId]) -> list[Effect]:
        """Whoever is added while a round is under way owns nothing in it."""
        before = self._part.roster
        new = sorted(peer for peer in peers if not self._is_seated(peer))[: MAX_SEATS - len(before)]
        seats = (*before, *(Seat(peer, 0) for peer in new)) if before else self._shared(new, self.round)
        return [Tell(Want(Roster(self._us.part, seats)))] if new else []

    def _shared(self, peers: Sequence[PeerId], round: int) -> tuple[Seat, ...]:
        """Seats for a round in an order that is the same for the same members, with shares as their lines allow."""
        peers, policy = sorted(peers), self._context.policy
        fit = self._fit(peers)
        claims = [self._claim(peer, peer in fit) for peer in peers]
        counts = share(claims, Load(policy.chunks_in(round), policy.scatter, policy.gather), policy.max_group)
        return tuple(Seat(peer, count) for peer, count in zip(peers, counts, strict=True))

    def _fit(self, peers: Sequence[PeerId]) -> set[PeerId]:
        """Those of `peers` whom the others reach without a relay, or whom most do."""
        offers = [self._offers[peer] for peer in peers if peer in self._offers]
        return set(ways_between(offers).fittest([offer.peer for offer in offers] or peers, peers))

    def _claim(self, peer: PeerId, may_own: bool) -> Claim:
        offer = self._offers.get(peer)
        return (
            Claim(offer.up, offer.down, offer.weight > 0, may_own) if offer is not None else Claim(0, 0, True, may_own)
        )

    # -- who is waited for --------------------------------------------------------------------------------------

    def _learn(self, now: float) -> None:
        """How far apart members are ready, whoever proposes: whoever does so next must know how long to wait.

        Not if that took longer than our patience: then somebody may have been gone on without.
        """
        if self._opened_at is None or self._learned or len(self._offers) == self._counted or self.missing():
            self._counted = len(self._offers)
            return
        self._learned = True
        if now - self._opened_at < self.patience():
            self._context.spread.observe(now - self._opened_at)

    def _learn_who_is_late(self, now: float) -> None:
        """Who does not come when it is called, whoever proposes, and who came in time after all."""
        if self._opened_at is None:
            return
        late, absent = self._context.late, self._exchange.absent
        is_in_time = now < self._call_due() + self._finishing()
        for peer, offer in self._offers.items():
            if offer.weight and (is_in_time or peer not in absent):
                late.trust(peer)
        for peer in absent:
            if peer not in self._offers and self._is_at_our_base(peer) and not late.leaves_out(peer, self.round):
                late.give_up(peer, self.round)

    def _call(self, now: float) -> list[Effect]:
        """Call who is missing, and again after as long as it was called for: a call may be lost."""
        if self._opened_at is None or now < self._call_due():
            return []
        self._calls = {peer: self._calls.get(peer, (now, now)) for peer in self.missing()}
        due = [peer for peer, (_, at) in self._calls.items() if now >= at]
        if due and self._called_at is None:
            self._called_at = now
        for peer in due:
            since, _ = self._calls[peer]
            self._calls[peer] = (since, now + max(self.patience(), now - since))
        call = Call(self._us.part, self.round)
        calls: list[Effect] = [Send(peer, call) for peer in due if peer != self._us.me]
        return [*calls, *([Tell(HandIn(self.round))] if self._us.me in due else [])]

    def _leave_out(self, now: float) -> list[Effect]:
        """Go on without those who have not come, if others have something to average."""
        if self._opened_at is None:
            return []
        late = []
        for peer in self._exchange.without_offer():
            if self._lacks_last_means(peer) and now - self._opened_at < self._longest():
                self._here_at[peer] = now
            if peer not in self._exchange.absent and (self._is_far(peer) or now >= self._waits_until(peer)):
                late.append(peer)
        if not late:
            return []
        here = [peer for peer in self._exchange.roster if self._exchange.offered(peer) is not None]
        enough = len(here) >= self._context.policy.members_needed(self.round)
        if not enough or not any(self._exchange.offered(peer) for peer in here):
            return []
        return [*self._exchange.leave_out(late), *self._say(now)]

    def _waits_until(self, peer: PeerId) -> float:
        """When `peer` is gone on without, if it has offered nothing by then."""
        assert self._opened_at is not None
        usual = self._here_at.get(peer, self._opened_at) + CLOSE * self.patience()
        if self._context.late.leaves_out(peer, self.round) or not self._is_at_our_base(peer):
            return usual
        called_at = self._called_at if self._called_at is not None else self._call_due()
        return max(usual, called_at + self._finishing())

    def _call_due(self) -> float:
        assert self._opened_at is not None
        return self._opened_at + self._called_after()

    def _finishing(self) -> float:
        """Seconds in which those who were called may finish their step."""
        return max(self.patience(), FINISH * self._trained_for)

    def _longest(self) -> float:
        """How long who lacks means of the last round is waited for: as long as the round itself took, at least."""
        return max(BEHIND * self.patience(), self._context.lasting.deadline())

    def _lacks_last_means(self, peer: PeerId) -> bool:
        """Whether `peer` is one round behind us, so that it may be waiting for its means over a slow line.

        Who downloads a state has none to wait for.
        """
        status = self._context.view.status(peer)
        if status is None or status.phase == "syncing" or not self._context.view.is_alive(peer):
            return False
        return status.round + 1 == self._base.round

    def _replace_lost(self, now: float) -> list[Effect]:
        if not self._exchange.roster:
            return []
        far = [peer for peer in self._exchange.absent if self._is_far(peer)]
        lost = {*self._exchange.lost, *far}
        moves = self._exchange.moves(lost, self._fit([peer for peer in self._exchange.roster if peer not in lost]))
        return [*self._exchange.move(moves), *self._say(now)] if moves else []

    def _say(self, now: float) -> list[Effect]:
        self._directed_at = now
        voters = self._context.log.register.voters
        return [
            Send(peer, self.direct())
            for peer in dict.fromkeys((*self._exchange.roster, *voters))
            if peer != self._us.me and peer not in self._exchange.lost
        ]

    def _repeat(self, now: float) -> list[Effect]:
        said = self.direct()
        return self._say(now) if (said.absent or said.epochs) and now - self._directed_at >= REPEAT else []

    # -- what is proposed ---------------------------------------------------------------------------------------

    def _propose(self) -> list[Effect]:
        """Put the round's result to the vote, and so vote for it, once its table is written; once in each view."""
        log = self._context.log
        place = (log.register.number, log.view)
        if not self._exchange.is_complete or self._context.shelf.unkept is not None or self._wanted == place:
            return []
        self._wanted = place
        table = self._exchange.table()
        self._context.shelf.put_table(table)
        return [Persist("means", Table(self._us.part, self.round, table)), Tell(Want(self._result(table)))]

    def _result(self, table: tuple[Made, ...]) -> Result:
        roster = self._exchange.roster
        everywhere = masked(roster, common(made.mask for made in table))
        counted = [peer for peer in everywhere if self._exchange.offered(peer)]
        return Result(
            part=self._us.part,
            round=self.round,
            base=self._base.entry,
            base_root=self._base.root,
            table=table_digest(table),
            counted=mask_of(roster, counted),
            weights=tuple(self._exchange.offered(peer) or 0 for peer in counted),
            roster=self._next_seats(),
        )

    def _next_seats(self) -> tuple[Seat, ...]:
        here = [
            peer
            for peer in self.expected()
            if not self._context.doubts.leaves_out(peer, self.round + 1)
            and (peer not in self._exchange.lost or self._is_ready(peer))
        ]
        return self._shared(here[:MAX_SEATS] or [self._us.me], self.round + 1)

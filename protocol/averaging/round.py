"""One member's side of one round: from its first offer until its result is decided and all means are here.

Rules:
- What has been averaged stays where it is whatever happens to the proposer: the next one goes on with it.
- A voter approves of a result if it was made on the state that the voter holds itself, and once it holds all its means,
  and those of the result before are on its disk: so a power cut of all undoes one round at most.
- Who brings nothing is reminded, and given up in the end, for more rounds each time; so nothing waits for ever on a
  live but wedged member. While nobody else has anything to bring it may try again: its link may have mended.
- Whoever stands on another state neither contributes nor owns anything, until it has caught up.
- A round is of the branch of the log on which it was opened. When the log goes on as another one, another round is
  opened in its place (rounds.py): of two branches that begin with the same round neither takes anything of the other.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable

from shoal.protocol.averaging.apart import MAX_APART, ways_between
from shoal.protocol.averaging.context import Context, Outcome
from shoal.protocol.averaging.events import Begun, Committed, Doubted, Due, HandIn, LogEnds, Lost, Reviewed, WrongState
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.fetching import Fetching
from shoal.protocol.averaging.headway import Headway
from shoal.protocol.averaging.mailbox import replayed
from shoal.protocol.averaging.policy import Base, Ready
from shoal.protocol.averaging.quiet import Quiet
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.averaging.shelf import Decision, table_digest
from shoal.protocol.averaging.silence import Stall
from shoal.protocol.averaging.steering import Steering
from shoal.protocol.base.effects import Blamed, Effect, Persist, Send, Tell, Withdraw
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.masks import masked
from shoal.protocol.base.signing import check_signature, signed
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.view import fastest
from shoal.protocol.messages import averaging as wire
from shoal.protocol.messages.log import Result, Seat

STALLED = 16  # patiences without any progress before we want another proposer
SEARCHED = 4  # patiences without any progress, in which all were asked for a result's means, before they count as lost
TRIES = 3  # holders who are asked which means a result has before it is taken to be known to none
AGAIN, MOST_AGAIN = 1.0, 15.0  # seconds until an offer is repeated, at first and at most


class Round:
    """The round after `base`."""

    def __init__(self, context: Context, base: Base, reducer: Reducer, now: float, is_new: bool = False) -> None:
        """`is_new`: we were counted in none before it, so others may still take us for dead, or for far behind."""
        self._context = context
        self._is_new = is_new
        self._us = context.us
        self._offers: dict[PeerId, wire.Offer] = {}
        self._given_up: set[PeerId] = set()  # who lives and offers, but brings nothing
        self._contradicted_at: dict[PeerId, float] = {}  # since when what came of somebody is of none of its offers
        self._strays: dict[PeerId, Digest] = {}  # roots of those who stand on another state
        self._elsewhere: dict[PeerId, None] = {}  # who has spoken last of another branch of the log
        self._offer: wire.Offer | None = None  # our own
        self._own: Ready | None = None  # what it says
        self._fetching = Fetching(context.us.part, base.round + 1, context.shelf, context.pace, self._longest_pause)
        self._headway: Headway | None = None
        self._quiet = Quiet()
        self._stall = Stall(now)
        self._review: tuple[Digest, Result, bool] | None = None
        self._outcome: Outcome | None = None
        self._table_asked = (-AGAIN, 0)  # when, and how often
        self._table_holder: PeerId | None = None  # of whom, unless it has said that it has none
        self._decided_at = self._reviewed_at = now  # when we first knew the outcome; it is told again at each later one
        self._is_due = False
        self._under_way_at: float | None = None
        self._offered_at, self._pause = now, AGAIN
        self._offered_to: set[PeerId] = set()  # of those who are here
        self._cut_off: set[PeerId] = set()  # whose connection was lost in this round
        self._contribution: Contribute | None = None
        self.base = base
        self.branch = context.us.branch
        chunks = context.policy.chunks_in(base.round + 1)
        self.exchange = Exchange(context.us, base.round + 1, base.root, chunks, reducer, context.shelf, self._receivers)
        self.steering = Steering(context, base, self.exchange, self._offers, now)

    def __repr__(self) -> str:
        return f"Round({self.number}, {self.phase}, {self.exchange}, outcome={self._outcome is not None})"

    @property
    def number(self) -> int:
        """Which round this is."""
        return self.base.round + 1

    @property
    def phase(self) -> str:
        """training; matching until all have offered; reducing until all means are here; then deciding."""
        if self._outcome is not None or self.exchange.is_complete:
            return "deciding"
        if self._offer is None:
            return "training"
        return "reducing" if self.exchange.is_under_way else "matching"

    @property
    def is_decided(self) -> bool:
        """Whether the log has decided the round; some of its means may not be here yet."""
        return self._outcome is not None

    @property
    def submitted(self) -> tuple[Ready, Contribute | None] | None:
        """What we have brought, if that is anything."""
        return (self._own, self._contribution) if self._own is not None else None

    def waiting_for(self) -> list[PeerId]:
        """Whom this round hangs on, as far as we know; before the exchange only if our own contribution is there."""
        if self.exchange.is_under_way:
            return [peer for peer in self.exchange.to_blame() if peer != self._us.me]
        if self._contribution is None:  # we still train, or never do: so nobody is late
            return []
        return [peer for peer in self.steering.missing() if peer != self._us.me]

    # -- commands -----------------------------------------------------------------------------------------------

    def submit(self, now: float, own: Ready, contribution: Contribute | None) -> list[Effect]:
        """Our inner steps are done; or nobody makes any, and there is no contribution, or not yet."""
        if self._offer is not None and (self._contribution is not None or contribution is None):
            return []
        self._own, self._contribution = own, contribution
        weight = own.weight if contribution is not None else 0
        us = self._us
        self._offer = signed(
            wire.Offer(
                branch=self.branch,
                part=us.part,
                round=self.number,
                number=self._context.log.register.number,
                base_root=self.base.root,
                weight=weight,
                up=own.up,
                down=own.down,
                reachable=own.standing.reachable,
                apart=own.standing.apart,
                peer=us.me,
                life=us.life,
                signature=b"",
            ),
            us.signer,
        )
        self._offers[us.me] = self._offer
        self._pause = AGAIN
        return self._do(now, [*self._send_offer(now), *self.exchange.contribute(weight, contribution)])

    def seat(self, now: float, seats: tuple[Seat, ...]) -> list[Effect]:
        """The round has a roster, or more members."""
        if len(seats) < self._context.policy.members_needed(self.number):
            return []
        before = self.exchange.roster
        effects = self.exchange.seat(seats)
        roster = self.exchange.roster
        if roster == before:
            return []
        owners = self.exchange.owners()
        doubted = [peer for peer in roster if not self._context.doubts.believes(peer)]
        self._headway = Headway(self._payloads(range(len(owners))), now, self._context.pace, doubted)
        for peer, offer in list(self._offers.items()):
            if peer in roster and peer not in before and peer != self._us.me:
                effects += self.exchange.offer(peer, offer.weight)
        for peer in roster:
            if peer not in before and peer != self._us.me and not self._context.view.is_alive(peer):
                effects += self.exchange.lose(peer)
        if self._us.me in roster:
            ways = ways_between(self._offers.values())
            effects.append(Tell(Begun(self.number, roster, tuple(owners), self._context.log.proposer, ways)))
        if self._offer is not None:
            effects += self._send_offer(now)
        return self._do(now, effects)

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        self._offered_to.discard(peer)  # if it comes back it may be another process
        return self._do(now, self.exchange.lose(peer) if peer in self.exchange.roster else [])

    def link_lost(self, peer: PeerId) -> None:
        """A connection with `peer` is lost, and what was on its way over it; it may have been started again."""
        self._offered_to.discard(peer)
        self._cut_off.add(peer)

    def review(self, now: float, entry: Digest, result: Result, is_bound: bool) -> list[Effect]:
        """May we vote for this result? Answered once we know."""
        self._review, self._reviewed_at = (entry, result, is_bound), now
        return self._do(now, [])

    def is_coming(self, now: float) -> bool:
        """Whether the round is decided, and its means are not looked for in vain, as far as a few tries tell."""
        if self._outcome is None or self._is_lost(now, self._decided_at):
            return False
        holders = self._holders()
        if self._context.shelf.table(self._outcome.result.table) is not None:
            return not self._fetching.is_in_vain(holders)
        return self._table_asked[1] <= min(TRIES, len(holders))

    def decided(self, now: float, outcome: Outcome) -> list[Effect]:
        """The log has decided the round."""
        if outcome.result.base_root != self.base.root:
            return [Tell(WrongState(is_proven=True))]
        if self._outcome is None:
            self._decided_at = now
        self._outcome = outcome
        return self._do(now, [])

    def look(self, now: float) -> list[Effect]:
        """Something outside has changed: the log, or who is there."""
        return self._do(now, [])

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A message of this round; RemoteError for a bad one."""
        taken = self.exchange.taken
        effects = self._dispatch(now, sender, message)
        gained = self.exchange.taken > taken
        self._context.outbox.taken_count += self.exchange.taken - taken
        if gained:
            self._context.doubts.trust(sender)
        self._quiet.hear(now, sender)
        if self._headway is not None and not isinstance(message, wire.Offer):
            self._headway.hear(now, sender, progress=gained)
        return self._do(now, effects)

    def tick(self, now: float) -> list[Effect]:
        """Remind the silent, fetch what is missing, steer, notice a stall."""
        effects = self._remind(now) + self._doubt_quiet(now) + self._repeat_offer(now) + self._check_stall(now)
        return self._do(now, effects)

    # -- inside -------------------------------------------------------------------------------------------------

    def _receivers(self) -> list[PeerId]:
        """The voters, but for those that are far behind: they take no mean yet, and ask for it once they are here."""
        voters = self._context.log.register.voters
        return [peer for peer in voters if peer in self._offers or not self._context.is_far(peer, self.base)]

    def _payloads(self, chunks: Collection[int]) -> dict[PeerId, int]:
        """How many payloads each member may have to move for these chunks, out or in."""
        roster, owners = self.exchange.roster, [self.exchange.owner(chunk) for chunk in chunks]
        return {peer: 2 * (len(owners) + owners.count(peer) * len(roster)) for peer in roster}

    def _dispatch(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case wire.Offer():
                return self._receive_offer(now, sender, message)
            case wire.Contribution(weight=weight):
                self._check_weight(weight, sender)
                return self.exchange.receive_contribution(sender, message)
            case wire.Mean() if self._is_astray(sender) and not self._context.shelf.was_asked(message, sender):
                return []  # of another state, or branch
            case wire.Mean():
                is_new, effects = self.exchange.receive_mean(sender, message)
                if is_new:
                    self._fetching.arrived(now, sender)
                return effects
            case wire.Give():
                return self._answer(now, sender, message)
            case wire.Have():
                return self.exchange.receive_have(sender, message)
            case wire.Direct():
                return self._receive_direct(now, sender, message)
            case wire.Call():
                return self._receive_call(now, sender)
            case wire.GetTable():
                return self._answer_table(sender, message)
            case wire.Table():
                return self._receive_table(sender, message)
            case wire.Progress():
                if message.is_waiting and sender == self._table_holder:  # it has none
                    self._table_holder = None
                self._fetching.put_off(now, sender, message)
                if self._headway is not None and sender in self.exchange.roster:
                    self._headway.report(now, sender, message, not self.exchange.lacks_contribution(sender))
        return []

    def _receive_offer(self, now: float, sender: PeerId, offer: wire.Offer) -> list[Effect]:
        if offer.peer != sender:
            raise RemoteError(f"sent an offer in the name of {offer.peer}", sender)
        self._check_weight(offer.weight, sender)
        if len(offer.apart) > MAX_APART:
            raise RemoteError(f"names {len(offer.apart)} members that it is apart from", sender)
        check_signature(offer, sender, self._us.signer)
        effects: list[Effect] = [Tell(LogEnds(sender, offer.number))]
        if offer.branch != self.branch:  # it has not heard yet how the log goes on, or we have not
            self._elsewhere[sender] = None
            return effects
        self._elsewhere.pop(sender, None)
        if offer.base_root != self.base.root:
            return effects + self._doubt(offer)
        known = self._offers.get(sender)
        self._offers[sender] = offer
        self._strays.pop(sender, None)
        if known is not None and known.weight and not offer.weight:  # another process, which does not have it
            return effects + (self.exchange.lose(sender) if sender in self.exchange.roster else [])
        if sender not in self.exchange.roster or (sender in self._given_up and not self._takes_back(now, sender)):
            return effects
        return effects + self.exchange.offer(sender, offer.weight)

    def _takes_back(self, now: float, peer: PeerId) -> bool:
        """Whether the round has nobody but `peer`, which was given up, to bring anything: then it is asked again."""
        others = [other for other in self.exchange.roster if other != peer]
        if self.exchange.is_fed_by(others) or self.exchange.contradicts(peer) or self._headway is None:
            return False
        self._given_up.remove(peer)
        self._headway.take_back(now, peer)
        return True

    def _is_astray(self, peer: PeerId) -> bool:
        return peer in self._strays or peer in self._elsewhere

    def _check_weight(self, weight: int, sender: PeerId) -> None:
        if weight > self._context.policy.max_weight:
            raise RemoteError(f"names weight {weight}, which is over the run's cap", sender)

    def _doubt(self, offer: wire.Offer) -> list[Effect]:
        """Who stands on another state has no part in the round; if most do, it is perhaps ours that is wrong."""
        self._strays[offer.peer] = offer.base_root
        roster = self.exchange.roster or self._context.log.register.voters
        roots = Counter(root for peer, root in self._strays.items() if peer in roster)
        if roots and 2 * max(roots.values()) > len(roster):
            return [Tell(WrongState(is_proven=False))]
        return self.exchange.lose(offer.peer) if offer.peer in self.exchange.roster else []

    def _receive_direct(self, now: float, sender: PeerId, message: wire.Direct) -> list[Effect]:
        if not self._votes(sender):
            return self._ask_about(sender)
        if any(chunk >= len(self.exchange.means) for chunk, _ in message.epochs):
            raise RemoteError("directs chunks that the round does not have", sender)
        before = list(self.exchange.epochs)
        effects = self.exchange.leave_out(message.absent) + self.exchange.move(message.epochs)
        moved = [chunk for chunk, epoch in enumerate(self.exchange.epochs) if epoch != before[chunk]]
        if self._headway is not None and moved:
            self._headway.wait_anew(now, self._payloads(moved))
        return self._repeat_offer(now) + effects

    def _receive_call(self, now: float, sender: PeerId) -> list[Effect]:
        if not self._votes(sender):
            return self._ask_about(sender)
        return [Tell(HandIn(self.number))] if self._offer is None else self._send_offer(now)

    def _votes(self, peer: PeerId) -> bool:
        return peer in self._context.log.register.voters

    def _ask_about(self, sender: PeerId) -> list[Effect]:
        """Somebody acts as a voter acts: our log may be behind."""
        return [Tell(LogEnds(sender, self._context.log.register.number + 1))]

    def _answer(self, now: float, sender: PeerId, message: wire.Give) -> list[Effect]:
        """The bytes, if they are here and not on their way already; and how far we are."""
        found = self.exchange.answer(sender, message)
        for chunk, hash in message.hashes:
            mean = self._context.shelf.find(self._us.part, self.number, chunk, hash)
            found += [Send(sender, mean)] if mean is not None else []
        fresh = self._context.outbox.fresh(now, found)
        if message.hashes and fresh:
            return fresh
        progress = self._context.progress(self.number, is_waiting=not found, is_queued=len(fresh) < len(found))
        moved = self.exchange.moved(sender, message)
        told: list[Effect] = [Send(sender, wire.Direct(self._us.part, self.number, (), moved))] if moved else []
        return [*told, *fresh, Send(sender, progress)]

    def _answer_table(self, sender: PeerId, message: wire.GetTable) -> list[Effect]:
        means = self._context.shelf.find_table(self.number, message.table)
        if means is None:
            return [Send(sender, self._context.progress(self.number, is_waiting=True, is_queued=False))]
        return [Send(sender, wire.Table(self._us.part, self.number, means))]

    def _receive_table(self, sender: PeerId, message: wire.Table) -> list[Effect]:
        if len(message.means) != len(self.exchange.means):
            raise RemoteError("sent a table of another length than the round's", sender)
        results = [self._review[1]] if self._review is not None else []
        results += [self._outcome.result] if self._outcome is not None else []
        result = next((each for each in results if each.table == table_digest(message.means)), None)
        if result is not None:
            is_decided, branches = self._outcome is not None, self._us.branches()
            roster = self._outcome.roster if self._outcome is not None else self.exchange.roster
            signed_on = branches if is_decided else branches[:1]  # it may have been decided before our branch began
            self.exchange.check_table(message.means, roster, result.base_root, signed_on, sender)
            self._context.shelf.put_table(message.means)
        return []

    # -- what follows -------------------------------------------------------------------------------------------

    def _do(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Whatever follows from what just happened."""
        effects += self.steering.steer(now)
        if self.exchange.is_under_way and self._under_way_at is None:
            self._under_way_at = now
        if self.exchange.is_complete:
            self._context.shelf.put_table(self.exchange.table())
            if not self._is_due and self._context.log.listens:
                self._is_due = True
                effects.append(Tell(Due()))
        effects += self._take_early(now) + self._answer_review(now) + self._conclude(now)
        self._context.outbox.note(now, effects)
        return effects

    def _answer_review(self, now: float) -> list[Effect]:
        if self._review is None or self._context.shelf.unkept is not None:
            return []
        entry, result, is_bound = self._review
        if (result.round, result.base) != (self.number, self.base.entry):
            return []  # we stand elsewhere, and catch up
        is_ours = result.base_root == self.base.root
        missing = self._get(now, result) if is_ours else []
        if missing is None:
            self._review = None
            return [Persist("means", self._table(result)), Tell(Reviewed(entry, True))]
        if not is_bound or (is_ours and not self._is_lost(now, self._reviewed_at)):
            return missing
        self._review = None
        return [Tell(Reviewed(entry, False))]

    def _conclude(self, now: float) -> list[Effect]:
        if self._outcome is None:
            return []
        outcome, result = self._outcome, self._outcome.result
        missing = self._get(now, result)
        if missing is not None:
            return [*missing, *([Tell(Lost(outcome.number))] if self._is_lost(now, self._decided_at) else [])]
        means = self._context.shelf.table(result.table)
        assert means is not None
        decision = Decision(outcome.number, result, outcome.roster, means, self._context.shelf.collect(means))
        me = self._us.me
        took_part = self._contribution is not None and me in outcome.roster
        counted = tuple(took_part and me in masked(outcome.roster, made.mask) for made in means)
        if self._under_way_at is not None:
            self._context.lasting.observe(now - self._under_way_at)
        return [Withdraw(self._us.part, self.number), *self._write_down(decision), Tell(Committed(decision, counted))]

    def _is_lost(self, now: float, since: float) -> bool:
        """Whether a result's means were looked for everywhere since then, without success."""
        return now - max(since, self._fetching.moved_at) > SEARCHED * self._context.pace.deadline()

    def _write_down(self, decision: Decision) -> list[Effect]:
        """With its means and their table a result can be applied after a restart."""
        part, round = self._us.part, self.number
        means = [
            Persist("result", wire.Mean(part, round, chunk, made, payload))
            for chunk, (made, payload) in enumerate(zip(decision.means, decision.payloads, strict=True))
            if not self.exchange.is_written(chunk, made)
        ]
        return [*means, Persist("result", self._table(decision.result))]

    def _table(self, result: Result) -> wire.Table:
        means = self._context.shelf.table(result.table)
        assert means is not None
        return wire.Table(self._us.part, self.number, means)

    def _get(self, now: float, result: Result) -> list[Effect] | None:
        """Ask for what is missing of a result and not on its way; None if all is here."""
        means = self._context.shelf.table(result.table)
        if means is None:
            return self._get_table(now, result)
        missing = self._context.shelf.missing(means)
        if not missing:
            return None
        due = [chunk for chunk in missing if not self._is_coming(now, chunk, means[chunk].owner)]
        return self._fetching.ask(now, means, due, self._holders())

    def _is_coming(self, now: float, chunk: int, owner: PeerId) -> bool:
        """Whether a mean that is not here is about to come from who made it, and sends it to all who are in the round.

        A payload that the network has taken from it may be on its way for longer than it remembers.
        """
        is_seated = {self._us.me, owner} <= {*self.exchange.roster}
        is_expected = self.exchange.means[chunk] is None and is_seated and not self._is_new
        if not is_expected or self._headway is None:
            return False
        if self._outcome is not None and now - self._decided_at >= self._headway.patience(owner):
            return False
        is_late = owner in self.exchange.lost or owner in self._cut_off or self._headway.is_late(now, owner)
        return owner != self._us.me and not is_late

    def _take_early(self, now: float) -> list[Effect]:
        """What came of a result's means before we knew who owns what."""
        results = [self._review[1]] if self._review is not None else []
        results += [self._outcome.result] if self._outcome is not None else []
        shelf, early = self._context.shelf, self._context.early
        wanted = set[tuple[int, Digest]]()
        for means in (shelf.table(result.table) for result in results if early.has_means):
            wanted |= {(chunk, means[chunk].hash) for chunk in shelf.missing(means)} if means is not None else set()
        effects: list[Effect] = []
        for sender, mean in early.take_means(self.number, wanted) if wanted else ():
            shelf.ask(mean.chunk, mean.made.hash, sender)
            effects += replayed(self._dispatch, now, sender, mean)
        return effects

    def _longest_pause(self, peer: PeerId) -> float:
        if self._headway is None or peer not in self.exchange.roster:
            return self._context.pace.deadline()
        return self._headway.longest_pause(peer)

    def _get_table(self, now: float, result: Result) -> list[Effect]:
        asked_at, turn = self._table_asked
        holders = self._holders()
        is_refused = self._table_holder is None and turn % TRIES  # so another one may have it: a few are asked at once
        if not holders or (now - asked_at < AGAIN and not is_refused):
            return []
        self._table_asked, self._table_holder = (now, turn + 1), holders[turn % len(holders)]
        return [Send(self._table_holder, wire.GetTable(self._us.part, self.number, result.table))]

    def _holders(self) -> list[PeerId]:
        """Who may hold what was proposed: the proposer, the other voters, then anybody; the fastest first."""
        view, log = self._context.view, self._context.log
        voters = fastest([peer for peer in log.register.voters if view.is_alive(peer)], view)
        first = [log.proposer] if view.is_alive(log.proposer) else []
        known = dict.fromkeys((*first, *voters, *fastest(view.alive(), view)))
        return [peer for peer in known if peer != self._us.me]

    # -- time ---------------------------------------------------------------------------------------------------

    def _remind(self, now: float) -> list[Effect]:
        headway, effects = self._headway, list[Effect]()
        if headway is None or not (self.exchange.is_under_way or self._offer is not None):
            return []
        for peer in self._owing():
            if self._contradicts_itself(now, peer):
                effects.append(Tell(Blamed(peer, "contributes by another weight than it has offered")))
                effects += self._give_up(peer)
            elif not headway.is_due(now, peer):
                continue
            elif self.exchange.is_under_way and headway.is_given_up(now, peer, owes_bytes=True):
                effects += self._give_up(peer)
            elif (give := self.exchange.want(peer)) is not None:
                effects.append(Send(peer, give))
        return effects

    def _contradicts_itself(self, now: float, peer: PeerId) -> bool:
        """Whether what came of `peer` is of no offer, though one of a process that was just started would be here."""
        if not self.exchange.contradicts(peer):
            self._contradicted_at.pop(peer, None)
            return False
        return now - self._contradicted_at.setdefault(peer, now) > MOST_AGAIN

    def _give_up(self, peer: PeerId) -> list[Effect]:
        self._given_up.add(peer)
        self._context.doubts.give_up(peer, self.number)
        return self.exchange.lose(peer)

    def _owing(self) -> list[PeerId]:
        return [peer for peer in self.exchange.awaited() if peer != self._us.me and peer not in self.exchange.lost]

    def _doubt_quiet(self, now: float) -> list[Effect]:
        if not self.exchange.is_under_way:
            return []
        return [Tell(Doubted(peer)) for peer in self._quiet.doubted(now, self._owing())]

    def _check_stall(self, now: float) -> list[Effect]:
        """If nothing moves any more, another proposer may know better; soon, if a chunk has lost its owner."""
        if not self.exchange.is_under_way or self._headway is None:
            return []
        moved = self._context.outbox.moved + self._headway.moved
        state = (moved, len(self.exchange.lost), tuple(self.exchange.epochs))
        patience = self._headway.longest_patience() * (1 if self.exchange.is_orphaned else STALLED)
        return [Tell(Due())] if self._stall.is_long(now, state, patience) else []

    def _send_offer(self, now: float) -> list[Effect]:
        takers = self._takers()
        self._offered_at, self._offered_to = now, self._here(takers)
        return self._offer_to(takers)

    def _offer_to_others(self) -> list[Effect]:
        """Those who have come, or come back, since."""
        takers = self._takers()
        new = self._here(takers) - self._offered_to
        self._offered_to |= new
        return self._offer_to([peer for peer in takers if peer in new])

    def _offer_to(self, takers: Iterable[PeerId]) -> list[Effect]:
        """With how far our log goes now."""
        assert self._offer is not None
        number = self._context.log.register.number
        if number != self._offer.number:
            self._offer = signed(dataclasses.replace(self._offer, number=number), self._us.signer)
        return [Send(peer, self._offer) for peer in takers]

    def _takers(self) -> list[PeerId]:
        """Who is to know that we are ready: the voters, and whoever takes contributions."""
        takers = dict.fromkeys((*self._context.log.register.voters, *self.exchange.owners()))
        return [peer for peer in takers if peer != self._us.me]

    def _here(self, peers: Iterable[PeerId]) -> set[PeerId]:
        return {peer for peer in peers if self._context.view.is_alive(peer)}

    def _repeat_offer(self, now: float) -> list[Effect]:
        """Until the round gets on: the offer, or what it told of the log, may have been lost."""
        if self._offer is None or self._outcome is not None:
            return []
        if now - self._offered_at < self._pause:
            return self._offer_to_others()
        self._pause = min(MOST_AGAIN, 2 * self._pause)
        return self._send_offer(now)

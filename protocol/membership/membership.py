"""Membership of one run: who is in it, who is alive, and what each says of itself.

SWIM (Das, Gupta, Motivala 2002): every period each member probes one other, directly and then through others. A
member that does not answer is suspected, and declared dead if it does not refute that; news travels with the probes. As
in Lifeguard, a member that is slow itself is more patient with others. The parts, each in its file:

    members    the table, the order of entries      vetting           checks of messages
    probe      who answers                          adaptive_probing  how often members are probed
    exchange   summaries, for newcomers and losses  suspicion         how long a suspect has
                                                    dissemination     which news travel, how often

This file is the state machine around them: commands, messages, timers. No deadline is a setting: deadlines follow from
observed round trips and from the number of members.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from shoal.protocol.base.effects import Effect, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.signing import Signer, signed
from shoal.protocol.base.timers import Timers
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.dissemination import Dissemination
from shoal.protocol.membership.exchange import Exchange, deaths
from shoal.protocol.membership.members import NEVER, MemberTable, NamesakeSeen, State
from shoal.protocol.membership.probe import Prober
from shoal.protocol.membership.suspicion import Suspicions
from shoal.protocol.membership.vetting import MAX_ADDRESSES, vet
from shoal.protocol.membership.view import MembershipView
from shoal.protocol.messages.membership import (
    MEMBERSHIP_MESSAGES,
    Ack,
    AckFor,
    Claim,
    Entry,
    Gossip,
    News,
    Ping,
    PingFor,
    RunStatus,
    Summary,
)

REVIVE_EVERY, REVIVE_MOST, REVIVE_COUNT = 5.0, 60.0, 3  # pings of dead members: first pause, longest pause, at once
LATE, LATE_GRACE = 0.25, 0.3  # seconds: a judgement that is later than the first waits for the second, to read messages
STALLED = 1.0  # seconds: if a timer is later, we were stopped, and our view of the others is out of date
EARLIER_LIVES = 8  # entries in our name that earlier lives of ours may have left behind
JUDGEMENTS = ("direct", "indirect", "verdict")


class Membership(MembershipView):
    """The membership core: one per run and peer. See protocol/base/effects.py for how it is driven."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        status: RunStatus,
        signer: Signer,
        rng: random.Random,
    ) -> None:
        own = Entry(me, 0, 0, shortlist(addresses, MAX_ADDRESSES), status, False, b"")
        super().__init__(MemberTable(signed(own, signer)))
        self.me = me
        self._signer = signer
        self._rng = rng
        self._timers = Timers("membership")
        self._news = Dissemination(self._table, self._timers, rng)
        self.probing = self._news.probing
        self._prober = Prober(self._table, self._news, self._timers, rng)
        self._suspicions = Suspicions(self._table, self._news, self._timers)
        self._exchange = Exchange(self._table, self._timers, self.probing, rng)
        self._running = False
        self._recovered_at = NEVER
        self._not_ours = 0  # entries in our name that this life did not make
        self._on_timer: dict[str, Callable[[float, str], list[Effect]]] = {
            "probe": self._prober.turn,
            "direct": lambda now, number: self._prober.probe_through_others(now, int(number)),
            "indirect": self._probe_failed,
            "request": lambda now, number: self._prober.give_up_for_other(int(number)),
            "verdict": lambda now, peer: self._suspicions.declare_dead(now, PeerId(peer), self.me),
            "again": self._ask_again,
            "gossip": self._news.gossip,
            "sync": self._exchange.sync,
            "revive": self._revive,
        }

    # -- commands -----------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join through any of `seeds`: members, or peers that may become members."""
        self._running = True
        return [*self._exchange.start(now, seeds), *self._begin(now)]

    def set_status(self, now: float, status: RunStatus) -> list[Effect]:
        """Set our status in the run; if it has changed, all members are told soon."""
        if not self._running or status == self._table.own.status:
            return []
        self._announce(status=status)
        return self._news.gossip_soon(now)

    def set_addresses(self, now: float, addresses: tuple[str, ...]) -> list[Effect]:
        """Set our addresses; if they have changed, all members are told soon."""
        addresses = shortlist(addresses, MAX_ADDRESSES)
        if addresses == self._table.own.addresses:
            return []
        self._announce(addresses=addresses)
        return self._news.gossip_soon(now) if self._running else []

    def leave(self, now: float) -> list[Effect]:
        """Say goodbye, also to those who may know us and have not answered yet. After that the core is silent, unless
        we `come_back`."""
        if not self._running:
            return []
        self._announce(left=True)
        self._running = False
        self._timers.clear()
        return self._news.goodbye(self._exchange.unanswered())

    def come_back(self, now: float, status: RunStatus) -> list[Effect]:
        """Take the goodbye back, with this status; we may have missed anything since."""
        if self._running:
            return []
        self._running = True
        self._announce(left=False, incarnation=self._table.own.incarnation + 1, status=status)
        return self._finish(now, [*self._exchange.resume(now), *self._begin(now), *self._recover(now)])

    def ended(self, now: float, peer: PeerId) -> list[Effect]:
        """Nobody listens any more where `peer` was, whose connection was closed: that is a death, unless it answers.

        Not of whom others could never dial: there a router or a firewall may have refused.
        """
        status = self.status(peer)
        if not self._running or not self.is_suspect(peer) or (status is not None and status.reachability == "nat"):
            return []
        return self._finish(now, self._suspicions.declare_dead(now, peer, self.me))

    def doubt(self, now: float, peer: PeerId) -> list[Effect]:
        """The connection with `peer` closed, or somebody waits for it in silence: probe it at once, in every way."""
        return self._finish(now, self._check(now, peer)) if self._running else []

    def link_up(self, now: float, peer: PeerId) -> list[Effect]:
        """There is a connection with `peer`: introduce ourselves, or probe it if it is suspected."""
        if not self._running or peer == self.me:
            return []
        state = self.state(peer)
        if state is State.ALIVE:
            return []
        if state is State.SUSPECT:
            return self._finish(now, self._prober.probe_all_ways(now, peer))
        return self._finish(now, [self._exchange.ask(peer)])

    # -- messages -----------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Take a message of a member or a newcomer."""
        if not isinstance(message, MEMBERSHIP_MESSAGES):
            raise RemoteError(f"{type(message).__name__} is not for membership", sender)
        vet(self._table, self._signer, sender, message)
        self._prober.vet(sender, message)
        if not self._running:
            return []
        was_dead = self.state(sender) is State.DEAD
        if self._table.outdates(message.entry):
            self._news.remind(sender)
        effects = self._learn(now, message.entry)
        if not isinstance(message, Summary):
            pass_on = not isinstance(message, Gossip) or message.pass_on
            effects += self._learn_news(now, message.news, pass_on)
        effects += self._answer(now, sender, message)
        if was_dead and self.is_alive(sender):  # we were cut off from each other: each may lack what the other knows
            effects.append(self._exchange.ask(sender))
        return self._finish(now, effects)

    def _answer(self, now: float, sender: PeerId, message: MEMBERSHIP_MESSAGES) -> list[Effect]:
        match message:
            case Ping():
                return self._prober.on_ping(now, sender, message)
            case Ack():
                asked_at = self._prober.asked_at(message.number)
                return [*self._prober.on_ack(now, message), *self._suspicions.answered(now, sender, asked_at)]
            case PingFor():
                return self._prober.on_ping_for(now, sender, message)
            case AckFor():
                return self._on_ack_for(now, sender, message)
            case Summary():
                return self._on_summary(now, sender, message)
            case Gossip():
                return []

    def _on_ack_for(self, now: float, sender: PeerId, message: AckFor) -> list[Effect]:
        effects = [] if message.answer is None else self._learn(now, message.answer)
        asked_at = self._prober.asked_at(message.number)
        target = self._prober.on_ack_for(now, sender, message)
        return effects if target is None else [*effects, *self._suspicions.answered(now, target, asked_at)]

    def _on_summary(self, now: float, sender: PeerId, summary: Summary) -> list[Effect]:
        effects = self._exchange.answer(sender, summary)
        for claim in deaths(sender, summary):
            effects += self._learn_claim(now, claim)
        return effects

    # -- learning -----------------------------------------------------------------------------------------

    def _learn_news(self, now: float, news: News, pass_on: bool) -> list[Effect]:
        dead = {claim.peer: claim.incarnation for claim in news.claims if claim.dead}
        effects: list[Effect] = []
        for entry in news.entries:
            is_dead = dead.get(entry.peer, -1) >= entry.incarnation
            effects += self._learn(now, entry, dead=is_dead, pass_on=pass_on)
        for claim in news.claims:
            effects += self._learn_claim(now, claim)
        return effects

    def _learn(self, now: float, entry: Entry, *, dead: bool = False, pass_on: bool = True) -> list[Effect]:
        if not self._table.is_later(entry):
            return []
        if entry.peer == self.me:
            return self._supersede(entry)
        event = self._table.adopt(now, entry, dead=dead)
        if not self.is_suspect(entry.peer):
            self._suspicions.close(entry.peer)
        if pass_on:
            self._news.tell(entry.peer)
        return [Tell(event)] if event else []

    def _supersede(self, entry: Entry) -> list[Effect]:
        """Supersede an entry in our name from an earlier life, or, if such entries recur, from another node."""
        self._not_ours += 1
        if self._not_ours > EARLIER_LIVES:
            return [Tell(NamesakeSeen())] if self._not_ours == EARLIER_LIVES + 1 else []
        self._announce(incarnation=entry.incarnation + 1)
        return []

    def _learn_claim(self, now: float, claim: Claim) -> list[Effect]:
        if claim.peer == self.me:
            return self._refute(claim)
        member = self._table.get(claim.peer)
        if member is None or not member.is_present or claim.incarnation != member.entry.incarnation:
            return []
        if not claim.dead:
            return self._suspicions.accuse(now, claim.peer, claim.accuser)
        effects = self._suspicions.hear_of_death(now, claim)
        return self._check(now, claim.peer) if effects is None else effects

    def _refute(self, claim: Claim) -> list[Effect]:
        if claim.incarnation >= self._table.own.incarnation:
            self._prober.doubt_ourselves()
            self._announce(incarnation=claim.incarnation + 1)
        return []

    def _announce(self, **changes: Any) -> None:
        own = self._table.own
        later = dataclasses.replace(own, version=own.version + 1, **changes)
        self._table.own = signed(later, self._signer)
        self._news.tell(self.me)

    # -- timers -------------------------------------------------------------------------------------------

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer that we asked for is due."""
        late = self._timers.accept(now, timer)
        if late is None or not self._running:
            return []
        effects: list[Effect] = []
        if late > STALLED and now - late >= self._recovered_at:
            effects = self._recover(now)
        if timer.name in JUDGEMENTS and late > LATE:
            if self._timers.due(timer.name, timer.subject) is None:
                effects.append(self._timers.arm(now, LATE_GRACE, timer.name, timer.subject))
        else:
            effects += self._on_timer[timer.name](now, timer.subject)
        return self._finish(now, effects)

    def _recover(self, now: float) -> list[Effect]:
        """We were stopped, and answers may have come meanwhile: probe again before we accuse anybody."""
        self._recovered_at = now
        self._prober.drop_all()
        effects = self._suspicions.restart(now)
        for peer in self._table.present():
            if self.is_suspect(peer):
                effects += self._prober.probe_all_ways(now, peer)
        return effects + self._exchange.ask_somebody()

    def _begin(self, now: float) -> list[Effect]:
        return [
            self._timers.arm(now, self._rng.uniform(0.0, self.probing.probe_pause(now)), "probe"),
            self._timers.arm(now, REVIVE_EVERY, "revive"),
        ]

    def _probe_failed(self, now: float, number: str) -> list[Effect]:
        target = self._prober.failed(int(number))
        if target is None or not self.is_alive(target):
            return []
        effects = self._suspicions.accuse(now, target, self.me)
        return [*effects, *self._prober.probe_all_ways(now, target)]

    def _check(self, now: float, peer: PeerId) -> list[Effect]:
        """Find out soon whether a present member is dead."""
        if not self.is_alive(peer) or self._timers.due("again", peer) is not None:
            return []
        effects = self._suspicions.check(now, peer)
        again = self._suspicions.time_left(now, peer) / 2
        return [*effects, *self._prober.probe_all_ways(now, peer), self._timers.arm(now, again, "again", peer)]

    def _ask_again(self, now: float, peer: str) -> list[Effect]:
        return self._prober.probe_all_ways(now, PeerId(peer)) if self.is_suspect(PeerId(peer)) else []

    def _revive(self, now: float, _: str) -> list[Effect]:
        """Ping some dead members, with growing pauses, so that the halves of a cut network find each other again."""
        due = [member for member in self._table if member.state is State.DEAD and member.retry_at <= now]
        effects: list[Effect] = []
        for member in self._rng.sample(due, min(REVIVE_COUNT, len(due))):
            member.retry_pause = min(REVIVE_MOST, max(REVIVE_EVERY, 2 * member.retry_pause))
            member.retry_at = now + member.retry_pause
            effects.append(self._prober.call(member.entry.peer))
        return [*effects, self._timers.arm(now, REVIVE_EVERY, "revive")]

    def _finish(self, now: float, effects: list[Effect]) -> list[Effect]:
        return [*effects, *self._news.gossip_soon(now)]

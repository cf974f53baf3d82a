"""Membership of one run: who is in it, who is alive, and what each says of itself.

SWIM (Das, Gupta, Motivala 2002): every period each member probes one other, directly and then through others;
who does not answer is suspected, and dead if it does not refute that; news ride on the probes. From Lifeguard
comes care in judging others: who is slow itself is patient. Collaborators do the work, each in its file:

    members    what is later than what              vetting        what may be believed at all
    probe      who answers                          suspicion      how long a suspect has
    exchange   summaries, for newcomers and losses  dissemination  what is carried along, how often

This file is the machine around them: commands, messages, timers. No deadline is a setting: they follow from
observed round trips and from the number of members.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from shoal.protocol import exchange
from shoal.protocol.dissemination import Dissemination
from shoal.protocol.effects import Effect, Send, Tell, Timer
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import Digest, PeerId, digest
from shoal.protocol.members import (
    MAX_MEMBERS,
    MAX_TOMBSTONES,
    MemberTable,
    PeerDown,
    PeerLeft,
    PeerSuspected,
    PeerUp,
    State,
    StatusChanged,
)
from shoal.protocol.messages.membership import Ack, AckFor, Claim, Entry, Gossip, News, Ping, PingFor, Summary
from shoal.protocol.messages.status import RunStatus
from shoal.protocol.probe import PERIOD, Prober
from shoal.protocol.signing import Signer, signed
from shoal.protocol.suspicion import Suspicions
from shoal.protocol.timers import Timers
from shoal.protocol.vetting import MAX_ADDRESSES, Spoken, vet
from shoal.protocol.wire import Message

__all__ = [
    "Membership",
    "PeerDown",
    "PeerLeft",
    "PeerSuspected",
    "PeerUp",
    "State",
    "StatusChanged",
    "view_digest",
]

FANOUT = 3  # members that hear news at once
GOSSIP_SOON, GOSSIP_GAP, GOSSIP_EVERY = 0.01, 0.05, 0.2  # fresh news; their least distance; older news
SYNC_EVERY, SYNC_SMALL = 30.0, 32  # seconds between exchanges; longer in groups that are not small
ALONE_FIRST, ALONE_MOST = 1.0, 15.0  # back-off between tries while nobody is there
REVIVE_EVERY, REVIVE_MOST, REVIVE_COUNT = 5.0, 60.0, 3  # calls to the dead: pause, longest pause, at once
SEEDS_AT_ONCE = 3
GOODBYES = 64
LATE, LATE_GRACE = 0.25, 0.3  # a judgement that comes later than this waits for what we have not read yet
STALLED = 1.0  # a timer later than this: we were stopped, and nothing that we believe of others is fresh
JUDGING = ("direct", "indirect", "verdict")


def view_digest(peers: Iterable[PeerId]) -> Digest:
    """What two nodes compare to see whether they see the same members."""
    return digest("membership view", *(peer.encode() for peer in sorted(peers)))


class Membership:
    """The membership core: one per run and peer. See protocol/effects.py for how it is driven."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        status: RunStatus,
        signer: Signer,
        rng: random.Random,
        *,
        max_members: int = MAX_MEMBERS,
        max_tombstones: int = MAX_TOMBSTONES,
    ) -> None:
        self.me = me
        self._signer = signer
        self._rng = rng
        own = Entry(me, 0, 0, addresses[:MAX_ADDRESSES], status, False, b"")
        self._table = MemberTable(signed(own, signer), max_members, max_tombstones)
        self._news = Dissemination(self._table)
        self._timers = Timers("membership")
        self._prober = Prober(self._table, self._news, self._timers, rng)
        self._suspicions = Suspicions(self._table, self._news, self._timers)
        self._seeds: list[PeerId] = []
        self._running = False
        self._alone_pause = ALONE_FIRST
        self._gossiped_at = -math.inf
        self._recovered_at = -math.inf
        self._on_timer: dict[str, Callable[[float, str], list[Effect]]] = {
            "probe": self._probe_next,
            "direct": lambda now, number: self._prober.probe_through_others(now, int(number)),
            "indirect": self._probe_failed,
            "errand": lambda now, number: self._prober.errand_failed(int(number)),
            "verdict": lambda now, peer: self._suspicions.bury(now, PeerId(peer), self.me),
            "again": self._ask_again,
            "gossip": self._gossip,
            "sync": self._sync,
            "revive": self._revive,
        }

    # -- what we know -------------------------------------------------------------------------------------

    def alive(self) -> list[PeerId]:
        """The other members that are not known to be dead or gone, suspects included; sorted."""
        return list(self._table.present())

    def is_alive(self, peer: PeerId) -> bool:
        """Whether `peer` is in `alive()`."""
        return self.state(peer) in (State.ALIVE, State.SUSPECT)

    def is_suspect(self, peer: PeerId) -> bool:
        """Whether `peer` does not answer and has not refuted that yet."""
        return self.state(peer) is State.SUSPECT

    def state(self, peer: PeerId) -> State | None:
        """What we believe of another member; None if we never heard of it."""
        member = self._table.get(peer)
        return None if member is None else member.state

    def entry(self, peer: PeerId) -> Entry | None:
        """The latest that `peer` (perhaps ourselves) said of itself: addresses, incarnation, status."""
        if peer == self.me:
            return self._table.own
        member = self._table.get(peer)
        return None if member is None else member.entry

    def status(self, peer: PeerId) -> RunStatus | None:
        """The latest status of `peer` (perhaps ourselves)."""
        entry = self.entry(peer)
        return None if entry is None else entry.status

    def lost_since(self, time: float) -> list[PeerId]:
        """Members that died (did not leave) since `time` and have not come back; sorted. Evidence for SPLIT."""
        dead = [member for member in self._table if member.state is State.DEAD and member.since >= time]
        return sorted(member.entry.peer for member in dead)

    def digest(self) -> Digest:
        """The digest of the members we see, ourselves included."""
        return view_digest([self.me, *self._table.present()])

    # -- commands -----------------------------------------------------------------------------------------

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Join through any of `seeds`: members, or peers that may become members."""
        self._running = True
        self._seeds = [seed for seed in seeds if seed != self.me]
        return [
            *self._ask_seeds(),
            self._timers.arm(now, self._rng.uniform(0.0, PERIOD), "probe"),
            self._timers.arm(now, ALONE_FIRST, "sync"),
            self._timers.arm(now, REVIVE_EVERY, "revive"),
        ]

    def set_status(self, now: float, status: RunStatus) -> list[Effect]:
        """Our standing in the run has changed: tell everybody, soon."""
        if not self._running or status == self._table.own.status:
            return []
        self._announce(status=status)
        return self._finish(now, [])

    def set_addresses(self, now: float, addresses: tuple[str, ...]) -> list[Effect]:
        """We can be reached elsewhere."""
        if not self._running or addresses[:MAX_ADDRESSES] == self._table.own.addresses:
            return []
        self._announce(addresses=addresses[:MAX_ADDRESSES])
        return self._finish(now, [])

    def leave(self, now: float) -> list[Effect]:
        """Say goodbye. Send what this returns; the core is silent from now on."""
        if not self._running:
            return []
        self._announce(left=True)
        self._running = False
        self._timers.clear()
        present = self._table.present()
        return [self._gossip_to(peer) for peer in self._rng.sample(present, min(GOODBYES, len(present)))]

    def link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        """The connection with `peer` closed: a blip or a death. Ask at once, every way there is."""
        return self._finish(now, self._check(now, peer)) if self._running else []

    def link_up(self, now: float, peer: PeerId) -> list[Effect]:
        """There is a connection with `peer`: get to know it, or end our doubts."""
        if not self._running or peer == self.me:
            return []
        state = self.state(peer)
        if state is State.ALIVE:
            return []
        if state is State.SUSPECT:
            return self._finish(now, self._prober.urge(now, peer))
        return self._finish(now, [exchange.ask(self._table, peer)])

    # -- messages -----------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """A member, or a newcomer, speaks."""
        if not isinstance(message, Spoken):
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
            effects += self._learn_news(now, message.news)
        effects += self._answer(now, sender, message)
        if was_dead and self.is_alive(sender):  # we were cut from each other: each may know what the other lost
            effects.append(exchange.ask(self._table, sender))
        return self._finish(now, effects)

    def _answer(self, now: float, sender: PeerId, message: Spoken) -> list[Effect]:
        match message:
            case Ping():
                return self._prober.on_ping(sender, message)
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
        self._alone_pause = ALONE_FIRST
        effects = exchange.answer(self._table, sender, summary)
        for claim in exchange.deaths(sender, summary):
            effects += self._hear(now, claim)
        return effects

    # -- learning -----------------------------------------------------------------------------------------

    def _learn_news(self, now: float, news: News) -> list[Effect]:
        dead = {claim.peer: claim.incarnation for claim in news.claims if claim.dead}
        effects: list[Effect] = []
        for entry in news.entries:
            effects += self._learn(now, entry, dead=dead.get(entry.peer, -1) >= entry.incarnation)
        for claim in news.claims:
            effects += self._hear(now, claim)
        return effects

    def _learn(self, now: float, entry: Entry, *, dead: bool = False) -> list[Effect]:
        if not self._table.is_later(entry):
            return []
        if entry.peer == self.me:  # from an earlier life of ours
            self._announce(incarnation=entry.incarnation + 1)
            return []
        event = self._table.adopt(now, entry, dead=dead)
        if not self.is_suspect(entry.peer):
            self._suspicions.close(entry.peer)
        self._news.tell(entry.peer)
        return [Tell(event)] if event else []

    def _hear(self, now: float, claim: Claim) -> list[Effect]:
        if claim.peer == self.me:
            return self._refute(claim)
        member = self._table.get(claim.peer)
        if member is None or not member.is_present or claim.incarnation != member.entry.incarnation:
            return []
        if not claim.dead:
            return self._suspicions.accuse(now, claim.peer, claim.accuser)
        buried = self._suspicions.hear_of_death(now, claim)
        return self._check(now, claim.peer) if buried is None else buried

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
        if timer.name in JUDGING and late > LATE:
            if self._timers.due(timer.name, timer.subject) is None:
                effects.append(self._timers.arm(now, LATE_GRACE, timer.name, timer.subject))
        else:
            effects += self._on_timer[timer.name](now, timer.subject)
        return self._finish(now, effects)

    def _recover(self, now: float) -> list[Effect]:
        """We were stopped. What we waited for may have come and gone: ask anew before we accuse anybody."""
        self._recovered_at = now
        self._prober.drop_all()
        effects = self._suspicions.restart(now)
        for peer in self._table.present():
            if self.is_suspect(peer):
                effects += self._prober.urge(now, peer)
        return effects + self._sync_once()

    def _probe_next(self, now: float, _: str) -> list[Effect]:
        target = self._prober.next_target()
        effects = [] if target is None else self._prober.probe(now, target)
        return [*effects, self._timers.arm(now, PERIOD, "probe")]

    def _probe_failed(self, now: float, number: str) -> list[Effect]:
        target = self._prober.failed(int(number))
        if target is None or not self.is_alive(target):
            return []
        effects = self._suspicions.accuse(now, target, self.me)
        return [*effects, *self._prober.urge(now, target)]

    def _check(self, now: float, peer: PeerId) -> list[Effect]:
        """Settle soon whether a present member is dead."""
        if not self.is_alive(peer) or self._timers.due("again", peer) is not None:
            return []
        effects = self._suspicions.check(now, peer)
        again = self._suspicions.time_left(now, peer) / 2
        return [*effects, *self._prober.urge(now, peer), self._timers.arm(now, again, "again", peer)]

    def _ask_again(self, now: float, peer: str) -> list[Effect]:
        return self._prober.urge(now, PeerId(peer)) if self.is_suspect(PeerId(peer)) else []

    def _gossip(self, now: float, _: str) -> list[Effect]:
        self._gossiped_at = now
        present = self._table.present()
        effects = [self._gossip_to(peer) for peer in self._rng.sample(present, min(FANOUT, len(present)))]
        if self._news and present:
            effects.append(self._timers.arm(now, GOSSIP_EVERY, "gossip"))
        return effects

    def _gossip_to(self, peer: PeerId) -> Effect:
        return Send(peer, Gossip(self._table.own, self._news.pack(peer)))

    def _sync(self, now: float, _: str) -> list[Effect]:
        count = len(self._table.present())
        if count:
            self._alone_pause = ALONE_FIRST
            pause = SYNC_EVERY * max(1.0, math.log2(2 * count / SYNC_SMALL)) * self._rng.uniform(0.8, 1.2)
        else:
            pause = self._alone_pause
            self._alone_pause = min(ALONE_MOST, 2 * pause)
        return [*self._sync_once(), self._timers.arm(now, pause, "sync")]

    def _sync_once(self) -> list[Effect]:
        present = self._table.present()
        return [exchange.ask(self._table, self._rng.choice(present))] if present else self._ask_seeds()

    def _ask_seeds(self) -> list[Effect]:
        chosen = self._rng.sample(self._seeds, min(SEEDS_AT_ONCE, len(self._seeds)))
        return [exchange.ask(self._table, seed) for seed in chosen]

    def _revive(self, now: float, _: str) -> list[Effect]:
        """Call some of the dead, each at growing distances: halves of a cut network find each other so."""
        due = [member for member in self._table if member.state is State.DEAD and member.retry_at <= now]
        effects: list[Effect] = []
        for member in self._rng.sample(due, min(REVIVE_COUNT, len(due))):
            member.retry_pause = min(REVIVE_MOST, max(REVIVE_EVERY, 2 * member.retry_pause))
            member.retry_at = now + member.retry_pause
            effects.append(self._prober.call(member.entry.peer))
        return [*effects, self._timers.arm(now, REVIVE_EVERY, "revive")]

    def _finish(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Fresh news do not wait for the next probe."""
        if self._news.take_fresh() and self._table.present():
            at = max(now + GOSSIP_SOON, self._gossiped_at + GOSSIP_GAP)
            due = self._timers.due("gossip")
            if due is None or due > at:
                effects.append(self._timers.arm(now, at - now, "gossip"))
        return effects

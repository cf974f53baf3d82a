"""Gossip: each piece of news travels with a bounded number of messages, the freshest first.

Each member that hears a piece of news repeats it about 3 log2(n+1) times, which reaches everyone with high probability
(SWIM, section 4.1); the periodic exchange of summaries repairs the rest. Entries are looked up when they are sent, so
the latest ones travel; claims that no longer hold are dropped.
"""

from __future__ import annotations

import math
import random
from heapq import nsmallest
from typing import Generic, TypeVar

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.membership.adaptive_probing import AdaptiveProbing
from shoal.protocol.membership.members import NEVER, MemberTable, State
from shoal.protocol.messages.membership import Claim, Entry, Gossip, News

PER_MESSAGE = 12  # entries, and as many claims
REPEATS = 3  # times log2(n+1)
FANOUT = 3  # members that are sent news at once
SOON, GAP, EVERY = 0.01, 0.05, 0.2  # seconds: delay of fresh news; least pause; pause while old news remain
GOODBYES = 64  # members that are told when we leave

K = TypeVar("K")


class Rumours(Generic[K]):
    """Keys of news, and how often each was told."""

    def __init__(self) -> None:
        self._told: dict[K, int] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, key: K) -> None:
        """Start telling, or start over."""
        self._told.pop(key, None)
        self._told[key] = 0

    def take(self, count: int, repeats: int) -> list[K]:
        """The `count` least told items; each counts as told once more, and is dropped after `repeats`."""
        told = self._told
        taken = list(told) if len(told) <= count else nsmallest(count, told, key=told.__getitem__)
        for key in taken:
            told[key] += 1
            if told[key] >= repeats:
                del told[key]
        return taken


class Dissemination:
    """Packs the news for each message, and sends those that cannot wait for the next probe."""

    def __init__(self, table: MemberTable, timers: Timers, rng: random.Random) -> None:
        self._table = table
        self._timers = timers
        self.probing = AdaptiveProbing(table, timers, rng)
        self._rng = rng
        self._gossiped_at = NEVER
        self._entries: Rumours[PeerId] = Rumours()
        self._claims: Rumours[Claim] = Rumours()
        self._fresh = False
        self._outdated: dict[PeerId, None] = {}  # members that sent an older entry than we hold of them

    def tell(self, peer: PeerId) -> None:
        """Spread the latest entry of `peer`, which may be ourselves."""
        self._entries.add(peer)
        self._fresh = True

    def tell_claim(self, claim: Claim) -> None:
        """Spread a claim."""
        self._claims.add(claim)
        self._fresh = True

    def remind(self, peer: PeerId) -> None:
        """Put the later entry of `peer`, from an earlier life of it, into the next message to it."""
        self._outdated[peer] = None

    def pack(self, to: PeerId) -> News:
        """The news for a message to `to`; if we hold a claim about it, that comes first, so that it can refute it."""
        repeats = math.ceil(REPEATS * math.log2(len(self._table.present()) + 2))
        entries = self._reminder(to)
        for peer in self._entries.take(PER_MESSAGE - len(entries), repeats):
            member = self._table.get(peer)
            if member is not None and peer != to:  # our own entry begins every message
                entries.append(member.entry)
        claims = self._accusation(to)
        for claim in self._claims.take(PER_MESSAGE - len(claims), repeats):
            if claim.peer != to and self._holds(claim):
                claims.append(claim)
        return News(tuple(entries), tuple(claims))

    def gossip_soon(self, now: float) -> list[Effect]:
        """Arrange to send fresh news before the next probe; news of several inputs are sent together."""
        fresh, self._fresh = self._fresh, False
        if not fresh or not self._table.present():
            return []
        at = max(now + SOON, self._gossiped_at + GAP)
        due = self._timers.due("gossip")
        gossip = [self._timers.arm(now, at - now, "gossip")] if due is None or due > at else []
        return [*self.probing.end_rest(now), *gossip]

    def gossip(self, now: float, _: str) -> list[Effect]:
        """Send news to a few members, and again a little later while there is something to tell."""
        self._gossiped_at = now
        effects = self._send_to(FANOUT)
        if effects and (self._entries or self._claims):
            effects.append(self._timers.arm(now, EVERY, "gossip"))
        return effects

    def goodbye(self, others: list[PeerId]) -> list[Effect]:
        """Send our goodbye to many members at once, as we send nothing later, and without any news to `others`."""
        alone = Gossip(self._table.own, News((), ()), pass_on=True)
        return [*self._send_to(GOODBYES), *(Send(peer, alone) for peer in others)]

    def _send_to(self, count: int) -> list[Effect]:
        present = self._table.present()
        chosen = self._rng.sample(present, min(count, len(present)))
        return [Send(peer, Gossip(self._table.own, self.pack(peer), pass_on=True)) for peer in chosen]

    def _reminder(self, to: PeerId) -> list[Entry]:
        member = self._table.get(to) if to in self._outdated else None
        self._outdated.pop(to, None)
        return [] if member is None else [member.entry]

    def _accusation(self, to: PeerId) -> list[Claim]:
        member = self._table.get(to)
        if member is None or member.state not in (State.SUSPECT, State.DEAD):
            return []
        dead = member.state is State.DEAD
        return [Claim(to, member.entry.incarnation, dead, self._table.own.peer)]

    def _holds(self, claim: Claim) -> bool:
        member = self._table.get(claim.peer)
        if member is None or member.entry.incarnation != claim.incarnation:
            return False
        return member.state is (State.DEAD if claim.dead else State.SUSPECT)

"""What is carried along: each piece of news travels in a bounded number of messages, the freshest first.

A rumour is told about 3 log2(n+1) times by each member that hears it, which reaches everyone with high
probability (SWIM, section 4.1); whom it misses, the periodic exchange of summaries heals. Entries are looked up
when they are sent, so that what travels is always the latest; claims that no longer hold are dropped.
"""

from __future__ import annotations

import math
import random
from heapq import nsmallest
from typing import Generic, TypeVar

from shoal.protocol.calm import Calm
from shoal.protocol.effects import Effect, Send
from shoal.protocol.ids import PeerId
from shoal.protocol.members import NEVER, MemberTable, State
from shoal.protocol.messages.membership import Claim, Entry, Gossip, News
from shoal.protocol.timers import Timers

CARRIED = 12  # entries, and claims, in one message
TELLINGS = 3  # times log2(n+1)
FANOUT = 3  # members that hear news at once
SOON, GAP, EVERY = 0.01, 0.05, 0.2  # seconds: until fresh news go out; their least distance; older news
GOODBYES = 64

K = TypeVar("K")


class Rumours(Generic[K]):
    """Keys and how often each was told."""

    def __init__(self) -> None:
        self._told: dict[K, int] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, key: K) -> None:
        """Start telling, or start over."""
        self._told.pop(key, None)
        self._told[key] = 0

    def discard(self, key: K) -> None:
        """Stop telling."""
        self._told.pop(key, None)

    def take(self, count: int, tellings: int) -> list[K]:
        """The `count` least told; they now count as told once more, and are dropped after `tellings`."""
        told = self._told
        taken = list(told) if len(told) <= count else nsmallest(count, told, key=told.__getitem__)
        for key in taken:
            told[key] += 1
            if told[key] >= tellings:
                del told[key]
        return taken


class Dissemination:
    """Packs the news for each message, and sends those that cannot wait for the next probe."""

    def __init__(self, table: MemberTable, timers: Timers, rng: random.Random) -> None:
        self._table = table
        self._timers = timers
        self.calm = Calm(table, timers, rng)
        self._rng = rng
        self._gossiped_at = NEVER
        self._entries: Rumours[PeerId] = Rumours()
        self._claims: Rumours[Claim] = Rumours()
        self._fresh = False
        self._outdated: dict[PeerId, None] = {}  # members that spoke with an older entry than we have of them

    def tell(self, peer: PeerId) -> None:
        """Spread the latest entry of `peer` (perhaps our own)."""
        self._entries.add(peer)
        self._fresh = True

    def tell_claim(self, claim: Claim) -> None:
        """Spread a claim."""
        self._claims.add(claim)
        self._fresh = True

    def remind(self, peer: PeerId) -> None:
        """Show `peer`, in the next message to it, the later entry that it made in an earlier life."""
        self._outdated[peer] = None

    def pack(self, to: PeerId) -> News:
        """The news for a message to `to`; if we think ill of it, it is told first, so that it can refute."""
        tellings = math.ceil(TELLINGS * math.log2(len(self._table.present()) + 2))
        entries = self._reminder(to)
        for peer in self._entries.take(CARRIED - len(entries), tellings):
            member = self._table.get(peer)
            if member is not None and peer != to:  # our own entry begins every message
                entries.append(member.entry)
        claims = self._accusation(to)
        for claim in self._claims.take(CARRIED - len(claims), tellings):
            if claim.peer != to and self._holds(claim):
                claims.append(claim)
        return News(tuple(entries), tuple(claims))

    def hasten(self, now: float) -> list[Effect]:
        """Fresh news do not wait for the next probe; several inputs' news go out together."""
        fresh, self._fresh = self._fresh, False
        if not fresh or not self._table.present():
            return []
        at = max(now + SOON, self._gossiped_at + GAP)
        due = self._timers.due("gossip")
        gossip = [self._timers.arm(now, at - now, "gossip")] if due is None or due > at else []
        return [*self.calm.stir(now), *gossip]

    def gossip(self, now: float, _: str) -> list[Effect]:
        """Tell a few members, and again a little later while there is something to tell."""
        self._gossiped_at = now
        effects = self._send_to(FANOUT)
        if effects and (self._entries or self._claims):
            effects.append(self._timers.arm(now, EVERY, "gossip"))
        return effects

    def goodbye(self) -> list[Effect]:
        """Tell many members at once: there will be no later."""
        return self._send_to(GOODBYES)

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

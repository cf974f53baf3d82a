"""Finding a partner in one round: whom to ask, whom to answer, whom to leave.

Rules:
- We ask one peer at a time (MEET): our partner in the draw among those who are here and near our round. They include
  those who are through with it already: else the last ones of a round would draw anew for each that has gone.
- If that partner is past the round, or excluded, we ask whom a draw among the rest gives us, or else whom we are
  heaviest to: it may have lost its own partner, as we have. Only who is drawn nobody from the start has a bye.
- Who asks us is our partner at once if it is whom we ask; or if it weighs more than that one, which is told (DECLINE).
  Else it is remembered: it may be all that is left later. Who asks while we train is remembered, too.
- Excluded for the round is who declines, dies, is lost in the middle of an exchange, or does not come in time: after
  twice our learned patience for each round that it is behind; after once it is urged to hand in. So a peer is tried
  at most once in a round.
- We hand in early for nobody but whom the draw gives us, and not before it has waited for as long as we would
  (`forbearance`): whoever says that it is urgent, to anybody and at once, hurries nobody.
- Who is asked and waits itself says so (LATER), and is waited for longer: it may be left with nobody but us.
- With nobody left there is no exchange in this round.
Whoever waits for us is no heavier than whom we wait for, so nobody waits in a circle (meeting.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.messages.replicas import Decline, Later, Meet, Refusal
from shoal.protocol.replicas.context import Means, near, standing
from shoal.protocol.replicas.events import Lapse
from shoal.protocol.replicas.meeting import Draw

CLOSE = 2  # patiences until a peer that does not come is gone on without
LONGEST = 4  # times as long as that, if it says LATER
AGAIN = 2.0  # seconds between two MEETs to the same peer, in case one was lost


@dataclass(frozen=True, slots=True)
class Suitor:
    """Somebody who asked us."""

    number: int
    since: float  # when it did, in this round
    is_urgent: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom we ask."""

    peer: PeerId
    number: int  # of our try
    since: float
    patience: float  # seconds until it is urged
    limit: float  # and until it is gone on without


def pairing_number(one: int, other: int) -> int:
    """The name of a pairing, from the numbers of both MEETs."""
    return (one + other) % (MAX_INT + 1)


class Matching:
    """One member's search, in the round after `base`."""

    def __init__(self, means: Means, base: int) -> None:
        self._means = means
        self._base = base
        self._draw = Draw(means.facts.seed, base + 1, means.me)
        self._suitors: dict[PeerId, Suitor] = {}
        self._excluded: dict[PeerId, None] = {}
        self._sent_at, self._was_urgent = 0.0, False
        self._put_off_at = -math.inf
        self._has_drawn = False
        self.asked: Asked | None = None
        self.reason = Lapse.NOBODY_LEFT  # if there is nobody to ask

    def __repr__(self) -> str:
        return f"Matching(asked={self.asked}, {len(self._suitors)} suitors, {len(self._excluded)} excluded)"

    @property
    def is_untroubled(self) -> bool:
        """Whether nobody was tried in vain, nor urged: how long we wait then says how far apart peers are ready."""
        asked = self.asked
        suitor = self._suitors.get(asked.peer) if asked is not None else None
        return not (self._excluded or self._was_urgent or (suitor is not None and suitor.is_urgent))

    def suitor(self, peer: PeerId) -> Suitor | None:
        """Its MEET, if it has asked us."""
        return self._suitors.get(peer)

    def is_urged(self, now: float) -> bool:
        """Whether whom we should meet has waited for us for too long."""
        if not any(each.is_urgent for each in self._suitors.values()):
            return False
        drawn = self._draw.partner(self._near(standing(self._means.view, self._means.facts)))
        suitor = self._suitors.get(drawn) if drawn is not None else None
        if drawn is None or suitor is None or not suitor.is_urgent:
            return False
        return now - suitor.since >= self._means.forbearance(self._base, drawn)

    def hear(self, now: float, sender: PeerId, number: int, is_urgent: bool) -> list[Effect]:
        """A MEET of this round; afterwards `asked` may be its sender, and is our partner then."""
        if sender in self._excluded:
            return [Send(sender, Decline(self._base + 1, Refusal.LOST))]
        known = self._suitors.get(sender)
        self._suitors[sender] = Suitor(number, known.since if known is not None else now, is_urgent)
        asked = self.asked
        if asked is None or asked.peer == sender:
            return []
        if not self._is_heavier(sender, asked.peer):
            return [Send(sender, Later(self._base + 1))]
        return [*self.exclude(asked.peer, Refusal.ENGAGED), *self._ask(now, sender)]

    def put_off(self, now: float, sender: PeerId) -> None:
        """Whom we ask may come to us in the end."""
        if self.asked is not None and self.asked.peer == sender:
            self._put_off_at = now

    def exclude(self, peer: PeerId, reason: Refusal | None = None) -> list[Effect]:
        """Do without `peer` in this round, and tell it why, if it is told; we ask nobody then, if we asked it."""
        self._excluded[peer] = None
        self._suitors.pop(peer, None)
        if self.asked is not None and self.asked.peer == peer:
            self.asked = None
        return [] if reason is None else [Send(peer, Decline(self._base + 1, reason))]

    def choose(self, now: float) -> list[Effect]:
        """Ask somebody, if anybody is left, now that we ask nobody."""
        drawn = self._drawn()
        suitors = [peer for peer in self._suitors if self._means.view.is_alive(peer)]
        best = max(suitors, key=self._weight_of, default=None)
        if best is not None and (drawn is None or self._is_heavier(best, drawn)):
            drawn = best
        return [] if drawn is None else self._ask(now, drawn)

    def tick(self, now: float) -> list[Effect]:
        """Ask again, as words may be lost; or go on without whom we have waited for long enough."""
        asked = self.asked
        if asked is None:
            return []
        is_late = now - max(asked.since, self._put_off_at) >= asked.limit
        if is_late or now - asked.since >= LONGEST * asked.limit:
            return self.exclude(asked.peer, Refusal.LOST)
        is_urgent = now - asked.since >= asked.patience
        return self.repeat(now) if now - self._sent_at >= AGAIN or is_urgent > self._was_urgent else []

    def repeat(self, now: float) -> list[Effect]:
        """Our MEET once more."""
        assert self.asked is not None
        self._sent_at, self._was_urgent = now, now - self.asked.since >= self.asked.patience
        peer, suitor = self.asked.peer, self._suitors.get(self.asked.peer)
        theirs = suitor.number if suitor is not None else 0
        log = self._means.log_number()
        return [Send(peer, Meet(self._base + 1, self.asked.number, theirs, self._was_urgent, log))]

    def dismiss(self, partner: PeerId | None) -> list[Effect]:
        """We have a partner, or need none: nobody else is to wait for us."""
        others = [peer for peer in self._suitors if peer != partner]
        reason = Refusal.PAST if partner is None else Refusal.ENGAGED
        return [effect for peer in others for effect in self.exclude(peer, reason)]

    def is_lonely(self) -> bool:
        """Whether whom we should meet is through with this round, and nobody else asks for us."""
        here = standing(self._means.view, self._means.facts)
        if self.asked is not None or any(peer in here for peer in self._suitors):
            return False
        drawn = self._draw.partner(self._near(here))
        return drawn is None or drawn in self._excluded or here[drawn] > self._base

    # -- inside ---------------------------------------------------------------------------------------------

    def _near(self, here: Mapping[PeerId, int]) -> list[PeerId]:
        return near(here, self._base, self._means.facts.window)

    def _drawn(self) -> PeerId | None:
        """Whom to ask, but for those who ask us."""
        window, here = self._means.facts.window, standing(self._means.view, self._means.facts)
        free = [p for p, round in here.items() if 0 <= self._base - round <= window and p not in self._excluded]
        if not self._has_drawn:
            self._has_drawn = True
            others = self._near(here)
            drawn = self._draw.partner(others)
            if drawn is None:
                self.reason = Lapse.BYE if others else Lapse.ALONE
            if drawn is None or drawn in free:
                return drawn
        return self._draw.partner(free) or max(free, key=self._weight_of, default=None)

    def _ask(self, now: float, peer: PeerId) -> list[Effect]:
        status = self._means.view.status(peer)
        behind = max(0, self._base - status.round) if status is not None and peer not in self._suitors else 0
        patience = self._means.patience()
        limit = CLOSE * patience * (1 + min(behind, self._means.facts.window))
        self.asked = Asked(peer, self._means.rng.getrandbits(62), now, patience, limit)
        self.reason = Lapse.NOBODY_LEFT
        return self.repeat(now)

    def _is_heavier(self, one: PeerId, other: PeerId) -> bool:
        return self._weight_of(one) > self._weight_of(other)

    def _weight_of(self, peer: PeerId) -> bytes:
        return self._draw.weigh(self._means.me, peer)

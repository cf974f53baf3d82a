"""Adaptive probing: the longer nothing happens in a run, the longer are the pauses, so that an idle run is cheap.

Rules:
- Pauses grow with the time since the last news. Their limit follows from a goal: if a resting run is cut in two, its
  members know it within 30 s, the verdict on the lost members included. A probe counts for both ends, and the member
  whose last probe is longest ago is probed next. So in a pair the next probe is at most one pause away (MOST_OF_TWO);
  in larger runs members on one side of a cut may first probe each other, so their pauses are shorter (MOST).
- News of any kind (our own, others', a lost connection) ends the rest at once. So the first death in a resting run is
  found later than usual, and further ones as soon as usual.
- A member that waits for others does not rest; its owner says so (`let_rest`), and that counts as news.
- Every pause is random, also after the same news at many members: otherwise all would probe at once, for ever.
"""

from __future__ import annotations

import math
import random

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.timers import Timers
from shoal.protocol.membership.members import MemberTable

GROWTH, MOST_OF_TWO, MOST = 1 / 5, 18.0, 10.0  # growth of pauses per second without news; its limits
PROBES, EXCHANGES, EXCHANGES_MOST = 1.0, 30.0, 120.0  # seconds between two while there is news; the longest
SMALL = 32  # members; larger groups exchange less often
PROBES_VARY, EXCHANGES_VARY = 0.1, 0.2  # share by which a pause may be longer or shorter


class AdaptiveProbing:
    """The pauses of one member between probes and between exchanges of summaries."""

    def __init__(self, table: MemberTable, timers: Timers, rng: random.Random) -> None:
        self._table = table
        self._timers = timers
        self._rng = rng
        self._may_rest = True
        self._news_at = float("inf")  # no news yet: no rest

    def end_rest(self, now: float) -> list[Effect]:
        """Return to short pauses, as there is news."""
        self._news_at = now
        return [
            *self._bring_forward(now, "probe", PROBES, self._rng.uniform(0.0, PROBES)),
            *self._bring_forward(now, "sync", EXCHANGES * self._crowd(), self.exchange_pause(now)),
        ]

    def let_rest(self, now: float, may_rest: bool) -> list[Effect]:
        """Set whether we may rest; we may not while we wait for others."""
        before, self._may_rest = self._may_rest, may_rest
        return self.end_rest(now) if before and not may_rest else []

    def is_resting(self, now: float) -> bool:
        """Whether pauses are longer than usual."""
        return self._growth(now) > 1.0

    def probe_pause(self, now: float) -> float:
        """Seconds until the next probe."""
        return PROBES * self._growth(now) * self._vary(PROBES_VARY)

    def exchange_pause(self, now: float) -> float:
        """Seconds until the next exchange of summaries."""
        return min(EXCHANGES_MOST, EXCHANGES * self._growth(now)) * self._crowd() * self._vary(EXCHANGES_VARY)

    def _bring_forward(self, now: float, name: str, usual: float, pause: float) -> list[Effect]:
        due = self._timers.due(name)
        is_late = due is not None and due > now + usual * (1 + EXCHANGES_VARY)
        return [self._timers.arm(now, pause, name)] if is_late else []

    def _growth(self, now: float) -> float:
        if not self._may_rest:
            return 1.0
        most = MOST if len(self._table.present()) > 1 else MOST_OF_TWO
        return min(most, max(1.0, GROWTH * (now - self._news_at)))

    def _crowd(self) -> float:
        """How many times less often a large group exchanges summaries, whose length grows with the group."""
        return max(1.0, math.log2(2 * max(1, len(self._table.present())) / SMALL))

    def _vary(self, share: float) -> float:
        return self._rng.uniform(1.0 - share, 1.0 + share)

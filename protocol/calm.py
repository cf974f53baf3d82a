"""How closely a run is watched: the longer nothing has happened in it, the less, so that waiting costs next to nothing.

Rules:
- Pauses grow with the time since the last news, up to MOST times what they are while something happens.
- News of any kind, of our own, of others, of a lost connection, end the rest at once. So the first death in a resting
  run is found later than usual, and all that come with it as soon as ever.
- Within a round nobody rests, as its owner says (`may_rest`): a round may take long, and hangs on its members.
"""

from __future__ import annotations

from shoal.protocol.effects import Effect
from shoal.protocol.timers import Timers

GROWTH, MOST = 1 / 5, 20.0  # periods for each second without news
PROBES, EXCHANGES, EXCHANGES_MOST = 1.0, 30.0, 120.0  # seconds between two while something happens; the longest


class Calm:
    """Of one member."""

    def __init__(self, timers: Timers) -> None:
        self.may_rest = True
        self._timers = timers
        self._news_at = float("inf")  # none yet: nobody rests

    def stir(self, now: float) -> list[Effect]:
        """There are news: what was put off is due as usual."""
        self._news_at = now
        usual = {"probe": PROBES, "sync": EXCHANGES}
        late = [name for name, pause in usual.items() if (self._timers.due(name) or 0.0) > now + pause]
        return [self._timers.arm(now, usual[name], name) for name in late]

    def probe_pause(self, now: float) -> float:
        """Until the next probe."""
        return PROBES * self._growth(now)

    def asked_before(self, now: float) -> float:
        """At rest, one probe of two members is enough, whose ever it is: who asked us later than this need not be."""
        pause = self.probe_pause(now)
        return now - pause if pause > PROBES else now

    def exchange_pause(self, now: float) -> float:
        """Until the next exchange of summaries, in a small group."""
        return min(EXCHANGES_MOST, EXCHANGES * self._growth(now))

    def _growth(self, now: float) -> float:
        if not self.may_rest:
            return 1.0
        return min(MOST, max(1.0, GROWTH * (now - self._news_at)))

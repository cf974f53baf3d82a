"""Whom a round waited for: while we are ready and it is not decided, who holds it up is noted a few times a second.

So a round says afterwards which members were late and by how much, as this node saw it, and whether it was itself the
one that was called to hand in what it had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shoal.protocol.ids import PeerId

NOTE_EVERY = 0.2  # seconds
WORTH_TELLING = 1.0  # seconds: everybody waits for everybody for a moment
SHARE = 0.25  # of the longest wait: who was waited for less did not hold the round up
MOST = 8  # peers named for a round


class Waits:
    """The waiting of one round."""

    def __init__(self) -> None:
        self.called = False  # the others waited for us
        self._seconds: defaultdict[PeerId, float] = defaultdict(float)

    def note(self, peers: Iterable[PeerId], seconds: float) -> None:
        """For so long, the round has hung on each of these."""
        for peer in peers:
            self._seconds[peer] += seconds

    def longest(self) -> dict[PeerId, float]:
        """The seconds for which each late member was waited for, the latest member first."""
        least = max(WORTH_TELLING, SHARE * max(self._seconds.values(), default=0.0))
        late = [(seconds, peer) for peer, seconds in self._seconds.items() if seconds >= least]
        return {peer: round(seconds, 1) for seconds, peer in sorted(late, reverse=True)[:MOST]}

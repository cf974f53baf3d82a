"""Which connections we can do without.

A node of the DHT talks to many peers, and a connection costs both its ends memory and a ping every few seconds. So the
KEPT that were used last are kept, for the next question is likely to go there; beyond that, those that nothing was
asked over for a while are closed. Members of our runs are none of its business: membership takes a lost connection for
a sign of death.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from shoal.protocol.ids import PeerId

KEPT = 48  # connections with peers that are in none of our runs
IDLE = 60.0  # seconds without a call
MAX_KNOWN = 4096  # peers whose last call is remembered


class LastUse:
    """When which peer called us or was called."""

    def __init__(self) -> None:
        self._at: OrderedDict[PeerId, float] = OrderedDict()

    def note(self, now: float, peer: PeerId) -> None:
        """A call, whoever asked."""
        self._at[peer] = now
        self._at.move_to_end(peer)
        if len(self._at) > MAX_KNOWN:
            self._at.popitem(last=False)

    def to_close(self, now: float, linked: Iterable[PeerId], needed: Callable[[PeerId], bool]) -> list[PeerId]:
        """The connections beyond KEPT that were idle for longest."""
        spare = [peer for peer in linked if not needed(peer)]
        for peer in spare:
            self._at.setdefault(peer, now)
        spare.sort(key=lambda peer: self._at[peer], reverse=True)
        return [peer for peer in spare[KEPT:] if self._at[peer] + IDLE <= now]

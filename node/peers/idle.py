"""Which connections we can do without.

A node of the DHT talks to many peers, and a connection costs both its ends memory and a ping now and then. So the KEPT
that were used last are kept, for the next question is likely to go there; beyond that, those that nothing was asked
over for a while are closed. Who cannot be dialled (it does not serve) pays for each with a word every half minute, lest
its router forget it: of those that were not used for long it keeps FEW. Some are needed, and none of its business:
members of our runs, as membership takes a lost connection for a sign of death; our relays, and whose relay we are. A
question about an expert is a use like a call of the DHT.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from shoal.protocol.ids import PeerId

KEPT = 48  # connections with peers that are in none of our runs
IDLE = 60.0  # seconds without a call
FEW, LONG_IDLE = 8, 300.0  # the same for who does not serve, beside KEPT and IDLE
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

    def to_close(
        self, now: float, linked: Iterable[PeerId], needed: Collection[PeerId], serves: bool = True
    ) -> list[PeerId]:
        """The connections beyond KEPT, or FEW, that were idle for longest."""
        spare = [peer for peer in linked if peer not in needed]
        for peer in spare:
            self._at.setdefault(peer, now)
        spare.sort(key=lambda peer: self._at[peer], reverse=True)
        few = KEPT if serves else FEW
        unused = [peer for peer in spare[few:KEPT] if self._at[peer] + LONG_IDLE <= now]
        return unused + [peer for peer in spare[KEPT:] if self._at[peer] + IDLE <= now]

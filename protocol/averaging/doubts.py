"""Who was given up though it lives: how long it is left out of rounds, and when it is believed again.

A link may carry words but no payloads, and a node may be wedged for days. Each time such a member is given up it is
left out of twice as many rounds; it is no longer taken at its word that it gets ahead, until it has brought something.

Who does not hand in when it is called is doubted apart from that, and has its seat: it is only not waited for so long.
"""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId

MOST_DOUBLINGS = 6  # so of 64 rounds at most


class Doubts:
    """One member's, over all rounds of a part."""

    def __init__(self, most_doublings: int = MOST_DOUBLINGS) -> None:
        self._most_doublings = most_doublings
        self._times: dict[PeerId, int] = {}
        self._until: dict[PeerId, int] = {}  # the last round that it is left out of

    def give_up(self, peer: PeerId, round: int) -> None:
        """`peer` has brought nothing in this round."""
        times = self._times.get(peer, 0)
        self._times[peer] = times + 1
        self._until[peer] = round + 2 ** min(times, self._most_doublings)

    def trust(self, peer: PeerId) -> None:
        """`peer` has brought something."""
        self._times.pop(peer, None)
        self._until.pop(peer, None)

    def forget(self) -> None:
        """Everybody is believed again: the rounds of another branch of the log are other ones."""
        self._times.clear()
        self._until.clear()

    def believes(self, peer: PeerId) -> bool:
        """Whether `peer` is taken at its word."""
        return peer not in self._times

    def leaves_out(self, peer: PeerId, round: int) -> bool:
        """Whether a round should do without `peer`, if it can."""
        return round <= self._until.get(peer, 0)

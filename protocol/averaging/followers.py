"""Who came just too late for a round, so that the next ones wait for it.

A member that is back from elsewhere, or new, stands a round or two behind, and has no seat, for which a proposer would
wait. Where rounds are over as fast as it catches up it would follow them for ever. So it is waited for as if it had
one; but only now and then: whoever is too slow to come even then holds up few rounds.
"""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId

WAITED_FOR = 2  # rounds, those after the one that it missed
RESTS = 8  # rounds from then on in which it is not


class Followers:
    """Of one part of a run; rounds are counted as everywhere."""

    def __init__(self) -> None:
        self._missed: dict[PeerId, int] = {}

    def note(self, peer: PeerId, round: int, newest: int) -> None:
        """`peer` is ready for `round` while `newest` is the last decided one: that, or one before it."""
        if not 0 <= newest - round < WAITED_FOR:
            return
        self._missed = {each: since for each, since in self._missed.items() if newest < since + WAITED_FOR + RESTS}
        self._missed.setdefault(peer, newest)

    def is_due(self, peer: PeerId, round: int) -> bool:
        """Whether `round` waits for it."""
        missed = self._missed.get(peer)
        return missed is not None and missed < round <= missed + WAITED_FOR

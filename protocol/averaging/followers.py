"""Who came just too late for a round, so that the next ones wait for it, and who is too far behind to wait for.

A member that is back from elsewhere, or new, stands a round or two behind, and has no seat, for which a proposer would
wait. Where rounds are over as fast as it catches up it would follow them for ever. So it is waited for as if it had
one; but only now and then: whoever is too slow to come even then holds up few rounds.

Who was away, and has a seat still, has spoken last of a round that is long over. What a member says of itself by gossip
may be older than that; so it is too far behind to be waited for only if both say so.
"""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId

WAITED_FOR = 2  # rounds, those after the one that it missed
MOST = 4096  # members of whom it is known of which round they have spoken, the latest ones
FAR = 2  # rounds before the current one: who is still in that one, or in an earlier one, is not waited for
RESTS = 8  # rounds from then on in which it is not


class Followers:
    """Of one part of a run; rounds are counted as everywhere."""

    def __init__(self) -> None:
        self._missed: dict[PeerId, int] = {}
        self._spoke: dict[PeerId, int] = {}  # of which round a member has last spoken to us as one who is in it

    def note(self, peer: PeerId, round: int, newest: int) -> None:
        """`peer` is ready for `round` while `newest` is the last decided one: that, or one before it."""
        if not 0 <= newest - round < WAITED_FOR:
            return
        self._missed = {each: since for each, since in self._missed.items() if newest < since + WAITED_FOR + RESTS}
        self._missed.setdefault(peer, newest)

    def forget(self) -> None:
        """Nothing is known of the rounds of this branch of the log."""
        self._missed.clear()
        self._spoke.clear()

    def heard(self, peer: PeerId, round: int) -> None:
        """`peer`, a member, offers something for `round`, or asks for what was made in it."""
        self._spoke[peer] = max(round, self._spoke.pop(peer, 0))
        if len(self._spoke) > MOST:
            del self._spoke[next(iter(self._spoke))]

    def is_far(self, peer: PeerId, round: int, said: int) -> bool:
        """Whether `peer` is too far behind `round` to be waited for; `said`: in which round it is, by gossip."""
        return max(said, self._spoke.get(peer, 0)) <= round - FAR and not self.is_due(peer, round)

    def is_due(self, peer: PeerId, round: int) -> bool:
        """Whether `round` waits for it."""
        missed = self._missed.get(peer)
        return missed is not None and missed < round <= missed + WAITED_FOR

"""Who of a group is lost, whether the others can still decide, and who leads next, when.

If the leader is lost, the first live member of the roster takes over at once, the second after a while, and so on:
views differ, so each waits for those before it, but not for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.protocol.base.ids import PeerId
from shoal.protocol.rounds.agreement.quorum import is_quorum


class Succession:
    """One member's view of who is left of its group."""

    def __init__(self, me: PeerId, members: tuple[PeerId, ...]) -> None:
        self._me = me
        self._members = members
        self._turn_at: float | None = None
        self.lost: list[PeerId] = []

    def __repr__(self) -> str:
        return f"Succession(lost={self.lost})"

    def live(self) -> list[PeerId]:
        """Those that are left, in roster order."""
        return [peer for peer in self._members if peer not in self.lost]

    def lose(self, peer: PeerId) -> bool:
        """Go on without `peer`; False if it is us, or no member, or lost already."""
        if peer not in self._members or peer in self.lost or peer == self._me:
            return False
        self.lost.append(peer)
        return True

    def can_decide(self, *electorates: Sequence[PeerId], left: Collection[PeerId]) -> bool:
        """Whether those that are left hold a quorum of each of these."""
        live = self.live()
        return all(is_quorum(live, voters, left) for voters in electorates)

    def leader_lost(self, now: float, patience: float) -> None:
        """The leader is among the lost: our turn comes after that of the live members before us."""
        self._turn_at = now + 2 * patience * self.live().index(self._me)

    def is_our_turn(self, now: float) -> bool:
        """Whether to take over now; once."""
        if self._turn_at is None or now < self._turn_at:
            return False
        self._turn_at = None
        return True

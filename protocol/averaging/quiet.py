"""Who, of those that a round waits for, has said nothing at all for a while: is it alive?

Membership is to find out. A peer whose process or machine has stopped keeps its connections, and would be found seconds
later, when it is probed in its turn. Whoever is there answers a ping at once, however slow its payloads are; so only
words are spent, and ever more rarely.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.ids import PeerId

QUIET = 0.8  # seconds; doubled each time, until it is heard again


class Quiet:
    """One round's view of the others."""

    def __init__(self) -> None:
        self._heard_at: dict[PeerId, float] = {}
        self._patience: dict[PeerId, float] = {}

    def hear(self, now: float, peer: PeerId) -> None:
        """Any message of this round."""
        self._heard_at[peer] = now
        self._patience.pop(peer, None)

    def doubted(self, now: float, awaited: Iterable[PeerId]) -> list[PeerId]:
        """Those of the awaited whom to ask after now."""
        found = []
        for peer in awaited:
            patience = self._patience.get(peer, QUIET)
            if now - self._heard_at.setdefault(peer, now) >= patience:
                self._patience[peer] = 2 * patience
                found.append(peer)
        return found

"""Who came too late for a group, or is not in it: they are told that they wait, and in the end the outcome."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Noted

MOST = 256


class Latecomers:
    """The last `MOST` of one round."""

    def __init__(self, round: int, part: int) -> None:
        self._round = round
        self._part = part
        self.peers: list[PeerId] = []

    def begin(self, peers: Iterable[PeerId]) -> None:
        """A group was formed without these."""
        self.peers = list(peers)

    def note(self, peer: PeerId, attempt: int) -> list[Effect]:
        """`peer`, which is in that attempt, waits for the outcome of our group."""
        self.peers = [*(each for each in self.peers if each != peer), peer][-MOST:]
        return [Send(peer, Noted(self._round, self._part, attempt))]

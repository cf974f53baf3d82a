"""Looking ahead: somebody has applied a round that we are still in, so we ask what we have missed, one by one."""

from __future__ import annotations

from collections import deque

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Ask
from shoal.protocol.rounds.matchmaking.context import View

MOST = 16  # that are remembered: over a slow link an answer comes when others have been asked since


class Lookout:
    """Whom we have asked last, so that the next one is asked next."""

    def __init__(self) -> None:
        self._asked: deque[PeerId] = deque(maxlen=MOST)
        self._asks = 0

    def has_asked(self, peer: PeerId) -> bool:
        """Whether `peer` was among the last that we have asked."""
        return peer in self._asked

    def look(self, view: View, round: int, part: int) -> list[Effect]:
        """Ask one of those whose status says that they have applied `round`, if there are any."""
        statuses = [(peer, view.status(peer)) for peer in view.alive()]
        ahead = [peer for peer, status in statuses if status is not None and status.round >= round]
        if not ahead:
            return []
        self._asks += 1
        peer = ahead[self._asks % len(ahead)]
        self._asked.append(peer)
        return [Send(peer, Ask(round, part, 0))]

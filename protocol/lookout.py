"""Looking ahead: somebody has applied a round that we are still in, so we ask what we have missed, one by one."""

from __future__ import annotations

from shoal.protocol.context import View
from shoal.protocol.effects import Effect, Send
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Ask


class Lookout:
    """Whom we have asked last, so that the next one is asked next."""

    def __init__(self) -> None:
        self.asked: PeerId | None = None
        self._asks = 0

    def look(self, view: View, round: int, part: int) -> list[Effect]:
        """Ask one of those whose status says that they have applied `round`, if there are any."""
        statuses = [(peer, view.status(peer)) for peer in view.alive()]
        ahead = [peer for peer, status in statuses if status is not None and status.round >= round]
        if not ahead:
            return []
        self._asks += 1
        self.asked = ahead[self._asks % len(ahead)]
        return [Send(self.asked, Ask(round, part, 0))]

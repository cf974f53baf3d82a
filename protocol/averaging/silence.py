"""Whom to ask again, and whom to give up: one count of silence per member of a group, and one for the whole.

Two things are told apart. Progress, which is bytes, puts off the next reminder. Any sign of life, even `I have
nothing for you yet`, shows that a member is not to be given up, but does not stop the reminders. They become rarer only
while they are not answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.base.ids import PeerId

STRIKES = 4  # unanswered reminders before a member counts as lost


class Silence:
    """Remembers when each member last brought something or was reminded, and how many reminders it let pass."""

    def __init__(self, members: Sequence[PeerId], now: float) -> None:
        self._clock = dict.fromkeys(members, now)  # the last progress or reminder
        self._strikes = dict.fromkeys(members, 0)  # reminders since the last sign of life

    def hear(self, now: float, peer: PeerId, progress: bool) -> float | None:
        """A sign of life; with progress, returns how long that took, else None."""
        if peer not in self._clock:
            return None
        self._strikes[peer] = 0
        if not progress:
            return None
        gap, self._clock[peer] = now - self._clock[peer], now
        return gap

    def wait_anew(self, now: float) -> None:
        """The work was shared out anew: nobody is late with it yet."""
        self._clock = dict.fromkeys(self._clock, now)

    def is_due(self, now: float, peer: PeerId, patience: float) -> bool:
        """Whether `peer` must be reminded now; a reminder that it lets pass puts the next one off."""
        if now - self._clock[peer] < patience * (1 + self._strikes[peer]):
            return False
        self._clock[peer] = now
        self._strikes[peer] += 1
        return True

    def is_given_up(self, peer: PeerId) -> bool:
        """Whether `peer` let every reminder pass."""
        return self._strikes[peer] > STRIKES


class Stall:
    """Notices that the group as a whole gets nowhere."""

    def __init__(self, now: float) -> None:
        self._state: tuple[object, ...] = ()
        self._since = now

    def is_long(self, now: float, state: tuple[object, ...], limit: float) -> bool:
        """Whether `state`, all that should change as the work goes on, has been the same for `limit` seconds."""
        if state != self._state:
            self._state, self._since = state, now
        return now - self._since >= limit

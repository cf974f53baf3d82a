"""When a peer says again what it has said for a number and a view of the log: it may be lost."""

from __future__ import annotations

from collections.abc import Hashable

SOON, AT_MOST = 5.0, 60.0  # seconds until it is said again: at first, and at most


class Repetition:
    """Soon after something new was said, then after twice as long each time."""

    def __init__(self) -> None:
        self._place: Hashable = None
        self._said: Hashable = None
        self._gap = SOON
        self._due_at = 0.0

    def is_due(self, now: float, place: Hashable, said: Hashable) -> bool:
        """Whether it is time at `now`: to be asked every second, with the view, and what stands for all that was said.

        What is new in the same view may bring that forward, and never puts it off: else it might never come.
        """
        if place != self._place:
            self._place, self._said, self._gap, self._due_at = place, said, SOON, now + SOON
        elif said != self._said:
            self._said, self._gap, self._due_at = said, SOON, min(self._due_at, now + SOON)
        if now < self._due_at:
            return False
        self._gap = min(2 * self._gap, AT_MOST)
        self._due_at = now + self._gap
        return True

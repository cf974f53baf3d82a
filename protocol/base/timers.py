"""Timers of one core: each has a name and a subject; arming one again makes the earlier one stale.

Timers are never cancelled (see effects.py). A late timer shows that the process was stopped or starved; it must not
judge others before it has read the messages that wait for it.
"""

from __future__ import annotations

from shoal.protocol.base.effects import Timer, Wake


class Timers:
    """Hands out tokens and recognises the live ones."""

    def __init__(self, core: str) -> None:
        self._core = core
        self._token = 0
        self._live: dict[tuple[str, str], tuple[int, float]] = {}

    def arm(self, now: float, after: float, name: str, subject: str = "") -> Wake:
        """A wake-up call for (name, subject); an earlier one becomes stale."""
        self._token += 1
        self._live[name, subject] = (self._token, now + after)
        return Wake(after, Timer(self._core, name, self._token, subject))

    def disarm(self, name: str, subject: str = "") -> None:
        """Make the timer stale, if there is one."""
        self._live.pop((name, subject), None)

    def due(self, name: str, subject: str = "") -> float | None:
        """When the live timer of this name and subject is due."""
        armed = self._live.get((name, subject))
        return None if armed is None else armed[1]

    def accept(self, now: float, timer: Timer) -> float | None:
        """Use up a live timer and return by how many seconds it is late; None if it is stale."""
        armed = self._live.get((timer.name, timer.subject))
        if armed is None or armed[0] != timer.token:
            return None
        del self._live[timer.name, timer.subject]
        return max(0.0, now - armed[1])

    def clear(self) -> None:
        """Make every timer stale."""
        self._live.clear()

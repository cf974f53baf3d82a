"""Going, but not at once: who had better be the last waits a moment, while it goes on as before.

Those who stop at the same time, because somebody stops all of a run's nodes, must not all sign off. So the first of the
voters waits to see whether the others do, and keeps its vote then; and whoever has voted waits for the decision. The
wait is short: in a run that goes on nobody else leaves, and the one that waits must be gone before it is killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Event, Timer, Wake

LOOK = 0.05  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Parted(Event):
    """We have gone: what was to be said has been said, and we are silent."""


@dataclass(frozen=True, slots=True)
class Parting:
    """One member's going."""

    since: float

    def wait(self, now: float, patience: float) -> Wake | None:
        """When to look again whether to go; None: now, as it is as long ago as whoever goes has patience."""
        return Wake(LOOK, Timer("parting", "look", 0)) if now < self.since + patience else None

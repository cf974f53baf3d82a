"""Going, but not at once: who is in the middle of an exchange waits for its end, if it comes soon."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Timer, Wake

LOOK = 0.05  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Parting:
    """One member's going."""

    since: float

    def wait(self, now: float, patience: float) -> Wake | None:
        """When to look again whether to go; None: now, as it is as long ago as whoever goes has patience."""
        return Wake(LOOK, Timer("parting", "look", 0)) if now < self.since + patience else None

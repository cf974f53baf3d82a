"""Deadlines learned from observed durations, so that no user has to guess a timeout.

Smoothed mean and deviation as in TCP (Jacobson 1988; RFC 6298): a deadline is mean + 4 deviations, within
[floor, ceiling]; before the first observation it is `initial`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Estimate:
    """Learns how long something takes, in seconds."""

    initial: float
    floor: float
    ceiling: float
    mean: float = 0.0
    deviation: float = 0.0
    samples: int = 0

    def observe(self, seconds: float) -> None:
        """Learn from one observation; impossible values, from a clock that was set, are ignored."""
        if not 0.0 <= seconds <= 10 * self.ceiling:
            return
        self.samples += 1
        if self.samples == 1:
            self.mean, self.deviation = seconds, seconds / 2
            return
        self.deviation += 0.25 * (abs(seconds - self.mean) - self.deviation)
        self.mean += 0.125 * (seconds - self.mean)

    def deadline(self) -> float:
        """The seconds after which something counts as overdue."""
        if not self.samples:
            return self.initial
        return min(self.ceiling, max(self.floor, self.mean + 4 * self.deviation))

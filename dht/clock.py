"""The wall clock, and whether it agrees with those of other nodes: records expire by it, so a node whose clock is wrong
holds and finds nothing.

Durations on this node are measured by `now`, which is steady. Only what two machines compare, the end of a record, goes
by the wall clock. That may be set forward or back at any time; we follow it, and nothing but records is affected.

The median of the last WITNESSES clocks decides, so a few liars change nothing. A wrong clock is reported once, and
again only after it was right in between.
"""

from __future__ import annotations

from collections import deque

from shoal.dht.calls import Calls
from shoal.dht.effects import ClockOff

WITNESSES = 15
FEWEST = 5
MOST = 120.0  # seconds that a clock may be off


class Wall:
    """The wall clock, as the seconds by which it is `ahead` of `now`; the shell keeps that up to date."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def at(self, now: float) -> float:
        """What it shows, in seconds since 1970."""
        return now + self.ahead


class Clocks:
    """Collects what others' clocks show."""

    def __init__(self, calls: Calls, wall: Wall) -> None:
        self._calls, self._wall = calls, wall
        self._ahead: deque[float] = deque(maxlen=WITNESSES)  # of `now`, which ours being set does not change
        self._told = False

    def hear(self, now: float, clock: int) -> None:
        """Somebody's clock shows `clock`."""
        self._ahead.append(now - clock)
        median = sorted(self._ahead)[len(self._ahead) // 2] + self._wall.ahead
        is_off = len(self._ahead) >= FEWEST and abs(median) > MOST
        if is_off and not self._told:
            self._calls.tell(ClockOff(round(median)))
        self._told = is_off

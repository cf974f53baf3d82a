"""The wall clock, and whether it agrees with the clocks of other nodes. Records expire by it, so a node whose clock is
wrong holds and finds nothing.

Durations on this node are measured by `now`, which is steady. Only the end of a record, which two machines compare,
goes by the wall clock. That may be set forward or back at any time; we follow it, and only records are affected.

The median of the last WITNESSES clocks decides, so a few liars change nothing. A wrong clock is reported once, and
again only after it was right in between.
"""

from __future__ import annotations

from collections import deque

from shoal.dht.calls import Calls
from shoal.dht.effects import ClockOff

WITNESSES = 15
FEWEST = 5  # clocks, before anything is reported
MOST = 120.0  # seconds that a clock may be off


class WallClock:
    """The wall clock, kept as the seconds by which it is `ahead` of `now`; the shell keeps that up to date."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def at(self, now: float) -> float:
        """The wall clock at `now`, in seconds since 1970."""
        return now + self.ahead


class ClockCheck:
    """Compares our clock with others', and reports ours if it is wrong."""

    def __init__(self, calls: Calls, wall: WallClock) -> None:
        self._calls, self._wall = calls, wall
        self._ahead: deque[float] = deque(maxlen=WITNESSES)  # `now`, which is never set, minus each clock
        self._told = False

    def hear(self, now: float, clock: int) -> None:
        """Note that another node's clock shows `clock`, in seconds since 1970."""
        self._ahead.append(now - clock)
        median = sorted(self._ahead)[len(self._ahead) // 2] + self._wall.ahead
        is_off = len(self._ahead) >= FEWEST and abs(median) > MOST
        if is_off and not self._told:
            self._calls.tell(ClockOff(round(median)))
        self._told = is_off

"""Whether our clock agrees with everybody's: records expire, so a node whose clock is wrong holds and finds nothing.

The median of what the last WITNESSES said decides, so that a few liars move nothing. It is told once, and again only
after it was right in between.
"""

from __future__ import annotations

from collections import deque

from shoal.dht.calls import Calls
from shoal.dht.effects import ClockOff

WITNESSES = 15
FEWEST = 5
MOST = 120.0  # seconds that a clock may be off


class Clocks:
    """Collects what others' clocks show."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._ahead: deque[float] = deque(maxlen=WITNESSES)
        self._told = False

    def hear(self, now: float, clock: int) -> None:
        """Somebody's clock shows `clock`."""
        self._ahead.append(now - clock)
        median = sorted(self._ahead)[len(self._ahead) // 2]
        is_off = len(self._ahead) >= FEWEST and abs(median) > MOST
        if is_off and not self._told:
            self._calls.tell(ClockOff(round(median)))
        self._told = is_off

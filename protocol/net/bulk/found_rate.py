"""What our line carries, found out by what passes over it while it is full, and while it is not. Pure.

A queue that stands on (nearly) all paths at once may stand in our own line, which is then full: what passes is what it
carries. A queue on some paths only is one in those peers' lines, or further on, and says little of ours.

Rules:
- Nothing is known until our line was full for ENOUGH seconds: a line that is never full needs no pacing. What is found
  first is too little, as TCP still finds its pace: it counts FIRST times.
- Our line is full if such queues stand and not all PASSES that the rate allows. Then the rate falls to a little less
  than what passes (DRAIN), so that the queue gets shorter, but not faster than FALL. What passed at the best time of
  MEMORY counts, as lines stall for a moment.
- If all passes, the queue is somebody else's, or in the way of the answers: it may stand as long as it likes, and we
  must not yield to it for ever. So the rate rises whenever most are sent to and one of them gets all of its part:
  slowly, as it was right not long ago, and after CALM seconds ever more quickly. Where most paths have a queue, it
  rises only after these seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

FULL = 0.75  # of the paths have a queue, at least
STALLED = 0.6  # seconds between two looks: so busy a machine has not sent what it might have, and this tells nothing
ENOUGH = 0.9  # seconds that tell what passes
FIRST = 1.2  # times what passes
PASSES = 0.97  # of the rate
DRAIN = 0.95  # of what passes
FALL = 0.4  # a second, at most: slow receivers leave much of their parts, so what passes may be far less than the rate
MEMORY = 4.0  # seconds of sending
MORE = 1.1  # times the rate: what a queue that gets shorter does not explain, so the rate was wrong
RISE, FASTEST = 0.04, 0.64  # a second
CALM = 3.0  # seconds since our line was full, after which the rise doubles each second
HELD = 0.8  # of a part: who gets more than this gets all of it


@dataclass(frozen=True, slots=True)
class Passed:
    """To one peer, since the last time."""

    size: int  # bytes that have arrived there
    has_queue: bool


class FoundRate:
    """Bytes a second that all peers share; 0 until it is known."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._full: deque[tuple[float, int]] = deque()  # seconds and bytes, since our line seems full
        self._carried: deque[tuple[float, float]] = deque()  # bytes a second while it did, by `_sent_for`
        self._sent_for = self._calm_for = 0.0  # seconds

    def see(self, seconds: float, passed: Collection[Passed], parts: int) -> None:
        """What went to those who are sent to, of all `parts` into which the rate is divided now."""
        if seconds > STALLED:
            return
        self._sent_for += seconds
        queues = sum(each.has_queue for each in passed)
        if queues < FULL * len(passed):
            self._full.clear()
        elif not self._is_enough(seconds, sum(each.size for each in passed)) or not self._passes(seconds):
            return
        held = HELD * self.rate / parts * seconds
        if self.rate and 2 * len(passed) > parts and any(each.size > held for each in passed):
            self._calm_for += seconds
            if 2 * queues <= len(passed) or self._calm_for > CALM:
                step = min(FASTEST, RISE * 2 ** max(0.0, self._calm_for - CALM))
                self.rate *= (1 + step) ** seconds

    def _is_enough(self, seconds: float, size: int) -> bool:
        """Whether it is known what our line carries, if it is full."""
        self._full.append((seconds, size))
        while sum(each for each, _ in self._full) - self._full[0][0] >= ENOUGH:
            self._full.popleft()
        if (whole := sum(each for each, _ in self._full)) < ENOUGH:
            return False
        self._carried.append((self._sent_for, sum(each for _, each in self._full) / whole))
        while self._carried[0][0] <= self._sent_for - MEMORY:
            self._carried.popleft()
        return True

    def _passes(self, seconds: float) -> bool:
        """Whether all passes that may; if not, the rate is less from now on."""
        carried = max(each for _, each in self._carried)
        if not self.rate:
            self.rate = FIRST * carried
            self._full.clear()
            self._carried.clear()
        elif carried < PASSES * self.rate:
            self.rate = max(DRAIN * carried, self.rate * (1 - FALL) ** seconds)
        else:
            self.rate = max(self.rate, carried / MORE)
            return True
        self._calm_for = 0.0
        return False

"""When a worker that lives counts as hung: it owes us an answer, and is silent for much longer than it ever was.

Rules:
- How long is too long is learned from the worker's own steps. Until the first step of a process it is a long time:
  a worker may load, download and compile before it.
- Orders do not end a silence: the others go on without us, and each of their rounds brings another order.
- Time in which we were stopped ourselves, or asleep, does not count.
- Who was found hung gets twice as long the next time, until it makes a step: perhaps it is only slow.
"""

from __future__ import annotations

from shoal.protocol.estimate import Estimate

LOOK = 1.0  # seconds between two looks
LOADING = 900.0  # seconds to the first step of a process
LEAST = 60.0  # seconds to any later one, however fast they usually are
MANY = 10  # learned deadlines of a step that make a hang
MOST_LENIENT = 16


class Watchdog:
    """Watches one worker over all its lives. `look` wants to be called every LOOK seconds."""

    def __init__(self) -> None:
        self._usual = Estimate(initial=0.0, floor=0.0, ceiling=86_400.0)  # seconds between two steps
        self._lenience = 1
        self._order: int | None = None  # what the worker owes an answer to
        self._has_stepped = False  # in this life
        self._looked_at = 0.0
        self.silence = 0.0  # seconds

    @property
    def limit(self) -> float:
        """Seconds of silence that are too many."""
        least = max(LEAST, MANY * self._usual.deadline())
        return self._lenience * (least if self._has_stepped else max(LOADING, least))

    @property
    def usual(self) -> float:
        """Seconds within which a step is usually made; 0.0 while nobody knows."""
        return self._usual.deadline()

    def begin(self, now: float) -> None:
        """A new process."""
        self._order, self._has_stepped = None, False
        self._looked_at, self.silence = now, 0.0

    def ordered(self, order: int) -> None:
        """The worker has got something to do."""
        if self._order is None:
            self.silence = 0.0
        self._order = order

    def stepped(self) -> None:
        """The worker has made a step, be it of an order that is over."""
        if self._has_stepped:
            self._usual.observe(self.silence)
        self._has_stepped, self._lenience, self.silence = True, 1, 0.0

    def answered(self, order: int, steps: int) -> None:
        """The worker has handed in; it may be of those that make all their steps without a word."""
        if steps:
            self._has_stepped = True
            self.stepped()
        if order == self._order:
            self._order = None

    def look(self, now: float) -> bool:
        """Whether the worker hangs."""
        if self._order is not None:
            self.silence += min(now - self._looked_at, 2 * LOOK)
        self._looked_at = now
        if self.silence <= self.limit:
            return False
        self._lenience = min(MOST_LENIENT, 2 * self._lenience)
        return True

"""Whether a worker is at work: pure cores, to which the time is passed in, in seconds.

`Watchdog`: a worker that lives counts as hung when it owes an answer and is silent for much longer than it ever was.
- How long is too long is learned from the worker's own steps. Until the first step of a process it is a long time:
  a worker may load, download and compile before it.
- Orders do not end a silence: the others go on without us, and each of their rounds brings another order.
- Time in which we were stopped ourselves, or asleep, does not count.
- A worker that was found hung gets twice as long the next time, until it makes a step: it may only be slow.

`Attendance`: whether the other members have to wait for a worker. Its life is not its node's, which keeps the state and
its vote; for a worker that is away the node takes part in the round with nothing.
- A script that has gone, and a worker that has failed for good, are away at once, until the next makes a step.
- Any other is waited for until the others call for it. Then it is away at once if there is none just now, and else once
  it has been silent for longer than its steps usually take, or than loading may.
- A worker that was found away stays so until it makes a step, so that the others wait once, and not in each round.
"""

from __future__ import annotations

from shoal.protocol.base.estimate import Estimate

LOOK = 1.0  # seconds between two looks
HANG_LOADING = 900.0  # seconds to the first step of a process
HANG_LEAST = 60.0  # seconds to any later one, however fast they usually are
HANG_MANY = 10  # learned deadlines of a step that make a hang
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
        least = max(HANG_LEAST, HANG_MANY * self._usual.deadline())
        return self._lenience * (least if self._has_stepped else max(HANG_LOADING, least))

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


AWAY_LOADING = 60.0  # seconds to the first step of a life, once the others wait
AWAY_LEAST, AWAY_MANY = 10.0, 3  # seconds to any later one, and learned deadlines of a step


class Attendance:
    """One worker's, over all its lives."""

    def __init__(self) -> None:
        self.is_away = False
        self._has_stepped = False  # in this life
        self._heard_at = 0.0

    def heard(self, now: float) -> None:
        """The worker has made a step, or handed in, be it for a round that is over."""
        self.is_away, self._has_stepped, self._heard_at = False, True, now

    def lost(self, for_good: bool) -> None:
        """It has ended; `for_good`, unless somebody starts another."""
        self.is_away, self._has_stepped = self.is_away or for_good, False

    def look(self, now: float, called_at: float, is_there: bool, usual: float) -> bool:
        """Whether it is away, as the others have called for it and it gives nothing; `usual` is a step's deadline."""
        patience = max(AWAY_LEAST, AWAY_MANY * usual) if self._has_stepped else AWAY_LOADING
        if not is_there or now - max(called_at, self._heard_at) > patience:
            self.is_away = True
        return self.is_away

    def silence(self, now: float, called_at: float) -> float:
        """Seconds since it gave a sign of its work; of a life without any, since the others have called for it."""
        return now - (self._heard_at if self._has_stepped else called_at)

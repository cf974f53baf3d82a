"""Whether a worker is making progress: pure cores, to which the time is passed in, in seconds.

`Watchdog`: whether a running worker hangs, that is, owes an answer and has been silent for much longer than usual.
- The limit is learned from the worker's own steps. Until the first step of a process it is long, because the worker may
  load, download and compile before.
- A new order does not end a silence: the other members go on without us, and each of their rounds brings a new order.
- Time in which this process was stopped, or the machine asleep, does not count.
- After a hang the limit is doubled, until the worker makes a step: it may just be slow.

`Attendance`: whether the other members have to wait for a worker. Even without a worker the node keeps the state and
its vote; while its worker is away it takes part in rounds without a contribution.
- A script that has gone, and a worker that has failed for good, are away at once, until the next one makes a step. So
  is one that has yet to load when we come into a run that goes on already.
- Any other worker is waited for until the other members call for its contribution. Then it is away at once if none is
  running, and otherwise once it has been silent for longer than its steps, or loading, usually take.
- A worker that is away stays so until it makes a step, so that the others wait once, and not in each round.
"""

from __future__ import annotations

from shoal.protocol.base.estimate import Estimate

LOOK = 1.0  # seconds between two checks
HANG_LOADING = 900.0  # seconds until the first step of a process
HANG_LEAST = 60.0  # seconds until any later step, however fast they usually are
HANG_MANY = 10  # a silence of so many learned deadlines of a step is a hang
MOST_LENIENT = 16  # factor by which repeated hangs raise the limit, at most


class Watchdog:
    """Watches the workers of one run, one after the other. `look` is to be called every LOOK seconds."""

    def __init__(self) -> None:
        self._usual = Estimate(initial=0.0, floor=0.0, ceiling=86_400.0)  # seconds between two steps
        self._lenience = 1
        self._order: int | None = None  # the order to which the worker owes an answer
        self._has_stepped = False  # in this process
        self._looked_at = 0.0
        self.silence = 0.0  # seconds

    @property
    def limit(self) -> float:
        """Seconds of silence beyond which the worker hangs."""
        least = max(HANG_LEAST, HANG_MANY * self._usual.deadline())
        return self._lenience * (least if self._has_stepped else max(HANG_LOADING, least))

    @property
    def usual(self) -> float:
        """Seconds within which a step is usually made; 0.0 while unknown."""
        return self._usual.deadline()

    def begin(self, now: float) -> None:
        """A new process has started."""
        self._order, self._has_stepped = None, False
        self._looked_at, self.silence = now, 0.0

    def ordered(self, order: int) -> None:
        """The worker has got an order."""
        if self._order is None:
            self.silence = 0.0
        self._order = order

    def stepped(self) -> None:
        """The worker has made a step, even if of an old order."""
        if self._has_stepped:
            self._usual.observe(self.silence)
        self._has_stepped, self._lenience, self.silence = True, 1, 0.0

    def measured(self) -> None:
        """The worker has measured a loss, and begins its steps: that time is not a step's."""
        self.silence = 0.0

    def answered(self, order: int, steps: int) -> None:
        """The worker has answered an order after `steps` steps, which it need not have reported one by one."""
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


AWAY_LOADING = 60.0  # seconds until the first step of a process, once the others wait
AWAY_LEAST, AWAY_MANY = 10.0, 3  # until any later step: seconds at least, and learned deadlines of a step


class Attendance:
    """The attendance of one run's workers, one after the other."""

    def __init__(self) -> None:
        self.is_away = False
        self._has_stepped = False  # in this process
        self._heard_at = 0.0

    def heard(self, now: float) -> None:
        """The worker has made a step, or handed in, even if for an old round."""
        self.is_away, self._has_stepped, self._heard_at = False, True, now

    def comes_late(self) -> None:
        """The others make rounds without us: they need not wait for the first step of this process."""
        self.is_away = self.is_away or not self._has_stepped

    def lost(self, for_good: bool) -> None:
        """The worker has ended; `for_good`: no other is started by the daemon."""
        self.is_away, self._has_stepped = self.is_away or for_good, False

    def look(self, now: float, called_at: float, is_there: bool, usual: float) -> bool:
        """Whether the worker is away, as the others called for its contribution; `usual` is `Watchdog.usual`."""
        patience = max(AWAY_LEAST, AWAY_MANY * usual) if self._has_stepped else AWAY_LOADING
        if not is_there or now - max(called_at, self._heard_at) > patience:
            self.is_away = True
        return self.is_away

    def silence(self, now: float, called_at: float) -> float:
        """Seconds since the worker was heard of; if this process never was, since the others called for it."""
        return now - (self._heard_at if self._has_stepped else called_at)

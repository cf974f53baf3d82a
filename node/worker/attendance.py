"""Whether the others have to wait for a worker: its life is not its node's, which keeps the state and its vote.

A pure core; the time is passed in, in seconds. A worker that is away is answered for by its node, which takes part in
the round with nothing. Rules:
- A script that has gone, and a worker that has failed for good, are away at once, until the next makes a step.
- Any other is waited for until the others call for it. Then it is away at once if there is none just now, and else once
  it has been silent for longer than its steps usually take, or than loading may.
- Who was found away stays so until it makes a step: a round costs the others one such wait, not each.
"""

from __future__ import annotations

LOADING = 60.0  # seconds to the first step of a life, once the others wait
LEAST, MANY = 10.0, 3  # seconds to any later one, and learned deadlines of a step


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
        patience = max(LEAST, MANY * usual) if self._has_stepped else LOADING
        if not is_there or now - max(called_at, self._heard_at) > patience:
            self.is_away = True
        return self.is_away

    def silence(self, now: float, called_at: float) -> float:
        """Seconds since it gave a sign of its work; of a life without any, since the others have called for it."""
        return now - (self._heard_at if self._has_stepped else called_at)

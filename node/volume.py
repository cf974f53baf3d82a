"""How much has gone over the wire today, both ways, over restarts: what a daily volume is held against.

Rules:
- A day is that of UTC, from midnight to midnight: so anybody can say when it goes on, and one number is all that
  must be kept. Over 24 hours that begin at noon it may be up to twice the volume. Who sets the clock back to an earlier
  day has not won a new one: what was counted counts until the next midnight, also what was before a clock went ahead.
- The file is written when something worth a write has passed, at the end, and atomically. What a crash loses is at most
  what passes in a minute; a full disk stops nobody, and is said.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from shoal.node.disk import replace_file
from shoal.node.logs import warn

DAY = 86_400  # seconds
SAVE_EVERY = 60.0  # seconds
WORTH_SAVING = 0.001  # of the volume
NEARLY = 0.95  # of the volume: then people are warned

log = logging.getLogger("shoal.daemon")


class Volume:
    """`limit` is what may pass a day, None for no limit, `total` what has passed since the process began."""

    def __init__(
        self, path: Path, limit: int | None, total: Callable[[], int], clock: Callable[[], float] = time.time
    ) -> None:
        self.limit = limit
        self._path, self._total, self._clock = path, total, clock
        self._day = self._today()
        self._used = self._load()
        self._left = (0, 0)  # the day before the clock last came to a later one, and its bytes
        self._seen = total()
        self._saved, self._saved_at = self._used, clock()

    @property
    def used(self) -> int:
        """Bytes of today."""
        day, total = self._today(), self._total()
        if day > self._day:
            self._left, self._used, self._saved = (self._day, self._used), 0, 0
        elif day < self._day and self._left[0] == day:  # the clock was ahead for a while, and is right again
            self._used += self._left[1]
        self._day = day
        self._used, self._seen = self._used + total - self._seen, total
        return self._used

    @property
    def is_used_up(self) -> bool:
        """Whether no more may pass today."""
        return self.limit is not None and self.used >= self.limit

    @property
    def is_nearly_used_up(self) -> bool:
        """Whether people should know that it soon will be."""
        return self.limit is not None and self.used >= NEARLY * self.limit

    @property
    def goes_on_at(self) -> int:
        """When the next day begins, in seconds since 1970."""
        return (self._today() + 1) * DAY

    def is_worth_saving(self) -> bool:
        """Whether a crash would lose something that matters, and the last write was a while ago."""
        if self.limit is None or self.used - self._saved < WORTH_SAVING * self.limit:
            return False
        return not 0 <= self._clock() - self._saved_at < SAVE_EVERY

    def record(self) -> bytes:
        """What is to be on disk now."""
        self._saved, self._saved_at = self.used, self._clock()
        return json.dumps({"day": _date(self._day), "bytes": self._saved}).encode()

    def write(self, record: bytes) -> None:
        """Have it there, if there is a limit; in any thread, as it blocks for as long as the disk does."""
        if self.limit is None:
            return
        try:
            replace_file(self._path, [record])
        except OSError as error:
            words = f"cannot write {self._path}: {error.strerror}; after a restart today's volume would begin anew"
            warn(log, "volume-not-saved", words)

    def _load(self) -> int:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return max(0, int(found["bytes"])) if found["day"] >= _date(self._day) else 0
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, TypeError, LookupError) as error:
            warn(log, "volume-damaged", f"{self._path} is damaged ({error}); today's volume begins anew")
            return 0

    def _today(self) -> int:
        return int(self._clock() // DAY)


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))

"""The daily volume: a limit of bytes on the wire per day. Near it the node warns; at it, it pauses until the next day.

Rules:
- A day is one of UTC, from midnight to midnight, so anybody can tell when the node goes on. Over 24 hours that begin at
  noon up to twice the volume may pass.
- The count is kept, over restarts, for each of the last dates that the clock has shown: a clock may be wrong for a
  while, as in 1970 before it is set, and a date that it shows again does not start from zero. Nothing is gained by
  setting the clock back: the highest count of any later date is added, until the next midnight.
- The file is written atomically, when enough has passed, and at the end. A crash loses the count of a minute at most. A
  full disk stops nothing, and is logged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from shoal.node.base.disk import replace_file
from shoal.node.base.logs import warn

DAY = 86_400  # seconds
SAVE_EVERY = 60.0  # seconds
WORTH_SAVING = 0.001  # share of the volume after which the count is saved
NEARLY = 0.95  # share of the volume at which people are warned
KEPT = 8  # dates in the file

log = logging.getLogger("shoal.daemon")


class DailyVolume:
    """Counts the bytes of each day, and keeps the counts in a file.

    `limit` is the number of bytes per day, None for no limit; `total` gives the bytes since the process began.
    """

    def __init__(
        self, path: Path, limit: int | None, total: Callable[[], int], clock: Callable[[], float] = time.time
    ) -> None:
        self.limit = limit
        self._path, self._total, self._clock = path, total, clock
        self._bytes = self._load()  # by date
        self._day = _date(self._today())
        self._seen = total()
        self._saved, self._saved_at = self.used, clock()

    @property
    def used(self) -> int:
        """Bytes that count for today."""
        day, total = _date(self._today()), self._total()
        if day > self._day:
            self._bytes, self._saved = {each: held for each, held in self._bytes.items() if each <= day}, 0
        self._bytes[day] = self._bytes.get(day, 0) + total - self._seen
        self._day, self._seen = day, total
        while len(self._bytes) > KEPT:
            del self._bytes[next(each for each in self._bytes if each != day)]
        return self._bytes[day] + max((held for each, held in self._bytes.items() if each > day), default=0)

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may pass today."""
        return self.limit is not None and self.used >= self.limit

    @property
    def is_nearly_used_up(self) -> bool:
        """Whether people should be warned that it soon will be used up."""
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
        """The content of the file as of now, which is taken to be saved."""
        self._saved, self._saved_at = self.used, self._clock()
        others = {each: held for each, held in self._bytes.items() if each != self._day}
        row = {"day": self._day, "bytes": self._bytes[self._day], **({"others": others} if others else {})}
        return json.dumps(row).encode()

    def write(self, record: bytes) -> None:
        """Write the file, if there is a limit. Blocks as long as the disk does; may be called in any thread."""
        if self.limit is None:
            return
        try:
            replace_file(self._path, [record])
        except OSError as error:
            words = f"cannot write {self._path}: {error.strerror}; after a restart today's volume would begin anew"
            warn(log, "volume-not-saved", words)

    def _load(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_bytes())
            held = {**found.get("others", {}), found["day"]: found["bytes"]}
            return {date.fromisoformat(each).isoformat(): max(0, int(number)) for each, number in held.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            warn(log, "volume-damaged", f"{self._path} is damaged ({error}); today's volume begins anew")
            return {}

    def _today(self) -> int:
        return int(self._clock() // DAY)


def _date(day: int) -> str:
    """A day (since 1970) in ISO 8601, in which later dates compare greater as text."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))

"""The daily volume: a limit of bytes on the wire per day. Near it the node warns; at it, it pauses until the next day.

Rules:
- A node that pauses leaves its runs as a node that stops: it says goodbye, so that the others decide without it and
  nobody waits, and saves what must be saved. It serves no data and relays nothing for others.
- It still answers the API, and other peers can find it: control messages pass, some kilobytes a minute. Runs that it is
  to join have to wait.
- The next day it enters its runs again, as after a restart. That may transfer much, which counts, too.
- A day is one of UTC, from midnight to midnight, so anybody can tell when the node goes on. Over 24 hours that begin at
  noon up to twice the volume may pass.
- The count is kept, over restarts, for each of the last dates that the clock has shown: a clock may be wrong for a
  while, as in 1970 before it is set, and a date that it shows again does not start from zero. Nothing is gained by
  setting the clock back: the highest count of any later date is added, until the next midnight.
- The file is written atomically, when enough has passed, and at the end. A crash loses the count of a minute at most. A
  full disk stops nothing, and is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from pathlib import Path

from shoal.node.api.answers import LimitsStatus, NodeWarning
from shoal.node.base.atomic import replace_file
from shoal.node.base.logs import warn
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import NOTES
from shoal.node.base.quantities import as_volume
from shoal.node.run.runs import Runs
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.tasks import Tasks
from shoal.protocol.net.system.throttle import Throttle

DAY = 86_400  # seconds
SAVE_EVERY = 60.0  # seconds
WORTH_SAVING = 0.001  # share of the volume after which the count is saved
NEARLY = 0.95  # share of the volume at which people are warned
KEPT = 8  # dates in the file
LOOK = 1.0  # seconds between two checks

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


class Pausing:
    """Pauses the runs when the volume is used up. `seeds` gives the peers by which runs are found again."""

    def __init__(
        self, volume: DailyVolume, throttle: Throttle, runs: Runs, seeds: Callable[[], Iterable[PeerId]]
    ) -> None:
        self._volume, self._throttle, self._runs, self._seeds = volume, throttle, runs, seeds
        self._is_warned = False
        self._tasks = Tasks(lambda error: log.error("the runs cannot be entered again", exc_info=error))
        if volume.is_used_up:  # before a restart
            self._shut()

    async def run(self) -> None:
        """Check again and again until cancelled; then write the count to disk."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK)
        finally:
            await self._tasks.close()
            self._volume.write(self._volume.record())

    async def look(self) -> None:
        """Warn, pause or continue, by how much has passed."""
        is_warned, self._is_warned = self._is_warned, self._volume.is_nearly_used_up
        if self._is_warned and not is_warned and not self._volume.is_used_up:
            warn(log, "volume-nearly-used-up", self._nearly())
        if self._volume.is_used_up and not self._throttle.is_shut:
            self._shut()
            await NOTES.run(self._volume.write, self._volume.record())
            await self._runs.pause()
        elif not self._volume.is_used_up and self._throttle.is_shut:
            log.info("a new day, and a new volume of %s: this node goes on", as_volume(self._volume.limit or 0))
            self._say_paused("")
            self._tasks.spawn(self._runs.restore(list(self._seeds())))
        if self._volume.is_worth_saving():
            NOTES.offer(partial(self._volume.write, self._volume.record()))  # in the background

    def _shut(self) -> None:
        """Stop all but control traffic at once; the runs are paused afterwards."""
        self._say_paused(self._used_up())
        warn(log, "volume-used-up", self._runs.paused)

    def _say_paused(self, why: str) -> None:
        self._throttle.is_shut = self._runs.data.is_paused = bool(why)
        self._runs.paused = why

    # -- in words -------------------------------------------------------------------------------------------

    def as_json(self) -> LimitsStatus:
        """For `status`: the owner's limits, and how much of them is used."""
        throttle, volume = self._throttle, self._volume
        return {
            "paused": self._runs.paused or None,
            "warnings": self._warnings(),
            "limits": {
                "max_up": throttle.up.rate,
                "max_down": throttle.down.rate,
                "max_per_day": volume.limit,
                "used_today": volume.used,
                "goes_on_at": volume.goes_on_at if throttle.is_shut else None,
            },
            "traffic": {"sent": throttle.up.total, "received": throttle.down.total},
        }

    def _warnings(self) -> list[NodeWarning]:
        if self._throttle.is_shut or not self._volume.is_nearly_used_up:
            return []
        return [{"code": "volume-nearly-used-up", "words": self._nearly()}]

    def _nearly(self) -> str:
        words = f"more than {NEARLY:.0%} of the {as_volume(self._volume.limit or 0)} that may pass today have passed"
        return f"{words}; when all have, this node pauses its runs until {self._next_day()}"

    def _used_up(self) -> str:
        words = f"paused: the {as_volume(self._volume.limit or 0)} that may pass a day (--max-per-day) have passed"
        return f"{words}; this node goes on by itself at {self._next_day()}"

    def _next_day(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._volume.goes_on_at))


def apply_limits(
    settings: NodeSettings, path: Path, network: Network, runs: Runs, seeds: Callable[[], Iterable[PeerId]]
) -> Pausing:
    """Apply the owner's limits to a network that has not started; the daily volume is counted in the file `path`."""
    throttle = network.throttle
    throttle.up.cap(settings.max_up)
    throttle.down.cap(settings.max_down)
    return Pausing(DailyVolume(path, settings.max_per_day, lambda: throttle.total), throttle, runs, seeds)

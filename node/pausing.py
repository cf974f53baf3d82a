"""What a node does about its daily volume: it warns, pauses when it is used up, and goes on by itself the next day.

Rules:
- Who pauses does what a node does that stops: it says good-bye to its runs, so that the others decide without it and
  nobody waits, and keeps what must be kept. It gives no data and carries nothing for others.
- People can still ask it, and others find it: words pass, some kilobytes a minute. Runs that it is to join wait, too.
- The next day it is in its runs again, as after a restart. That may take long, and is under the same volume.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from shoal.node.logs import warn
from shoal.node.options import NodeSettings
from shoal.node.pools import NOTES
from shoal.node.quantities import as_volume
from shoal.node.run.runs import Runs
from shoal.node.service import Answer
from shoal.node.volume import NEARLY, Volume
from shoal.protocol.ids import PeerId
from shoal.protocol.network import Network
from shoal.protocol.tasks import Tasks
from shoal.protocol.throttle import Throttle

LOOK = 1.0  # seconds

log = logging.getLogger("shoal.daemon")


class Pausing:
    """`seeds` are those by whom the runs are found again."""

    def __init__(self, volume: Volume, throttle: Throttle, runs: Runs, seeds: Callable[[], Iterable[PeerId]]) -> None:
        self._volume, self._throttle, self._runs, self._seeds = volume, throttle, runs, seeds
        self._is_warned = False
        self._tasks = Tasks(lambda error: log.error("the runs cannot be entered again", exc_info=error))
        if volume.is_used_up:  # in an earlier life
            self._shut()

    async def run(self) -> None:
        """For good; what was counted is on disk when it ends."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK)
        finally:
            await self._tasks.close()
            self._volume.write(self._volume.record())

    async def look(self) -> None:
        """Do what follows from how much has passed."""
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
            NOTES.offer(partial(self._volume.write, self._volume.record()))  # which counting does not wait for

    def _shut(self) -> None:
        """At once, before anything is waited for."""
        self._say_paused(self._used_up())
        warn(log, "volume-used-up", self._runs.paused)

    def _say_paused(self, why: str) -> None:
        self._throttle.is_shut = self._runs.data.is_paused = bool(why)
        self._runs.paused = why

    # -- in words -------------------------------------------------------------------------------------------

    def as_json(self) -> Answer:
        """For `status`: the owner's limits, and where the node is with them."""
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

    def _warnings(self) -> list[Answer]:
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


def under_limits(
    settings: NodeSettings, path: Path, network: Network, runs: Runs, seeds: Callable[[], Iterable[PeerId]]
) -> Pausing:
    """Put a network, before it starts, under the limits of its owner, whose daily volume is counted at `path`."""
    throttle = network.throttle
    throttle.up.cap(settings.max_up)
    throttle.down.cap(settings.max_down)
    return Pausing(Volume(path, settings.max_per_day, lambda: throttle.total), throttle, runs, seeds)

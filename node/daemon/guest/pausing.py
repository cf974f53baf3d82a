"""Carries out what rules.py decides: the node pauses while there is a reason, and enters its runs again after it.

Rules:
- A node that pauses first ends its workers, so that its devices are free within two seconds. Then it leaves its runs as
  a node that stops: it says goodbye, so that the others decide without it and nobody waits, and saves what must be
  saved. It serves no data and relays nothing for others.
- It still answers the API, and other peers can find it: control messages pass, some kilobytes a minute. Runs that it is
  to join have to wait.
- When no reason is left it enters its runs again, as after a restart.
- The machine is looked at before the first run is entered, and then every few seconds.
- A pause that a person has asked for is kept in the home, and so holds over a restart of the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from shoal.node.api.answers import LimitsStatus, NodeWarning, PauseStatus
from shoal.node.base.atomic import replace_file
from shoal.node.base.logs import warn
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import NOTES
from shoal.node.base.quantities import MOST_SECONDS, as_volume
from shoal.node.daemon.guest.machine import Machine
from shoal.node.daemon.guest.rules import VOLUME, Asked, Decision, Manners, Reason, Seen, in_words, pause_ends
from shoal.node.daemon.guest.today import TodayCount
from shoal.node.daemon.guest.volume import NEARLY, DailyVolume
from shoal.node.run.runs import Runs
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.system.tasks import Tasks
from shoal.protocol.net.system.throttle import Throttle

LOOK = 1.0  # seconds between two checks
LOOK_AT_MACHINE = 5.0  # seconds between two looks at the machine
FREED_WITHIN = 5.0  # seconds that the answer to `pause` waits for the devices

log = logging.getLogger("shoal.daemon")


class AskedFile:
    """Keeps the pause that a person has asked for. What cannot be read or written is logged, and stops nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Asked | None:
        """The pause that was asked for, if any."""
        try:
            found = json.loads(self._path.read_bytes())
            return Asked(float(found["since"]), None if found["until"] is None else float(found["until"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            warn(log, "pause-damaged", f"{self._path} is damaged ({error}); the node does not pause for it")
            return None

    def save(self, asked: Asked | None) -> None:
        """Keep it, or forget the one before. Blocks as long as the disk does; may be called in any thread."""
        try:
            if asked is None:
                self._path.unlink(missing_ok=True)
            else:
                replace_file(self._path, [json.dumps({"since": asked.since, "until": asked.until}).encode()])
        except OSError as error:
            words = f"cannot write {self._path}: {error.strerror}; after a restart the node would not know of this"
            warn(log, "pause-not-saved", words)


class Pausing:
    """Pauses the runs and goes on with them. `seeds` gives the peers by which runs are found again."""

    def __init__(
        self,
        settings: NodeSettings,
        asked: AskedFile,
        volume: DailyVolume,
        throttle: Throttle,
        runs: Runs,
        seeds: Callable[[], Iterable[PeerId]],
        machine: Machine,
        today: TodayCount,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._volume, self._throttle, self._runs, self._seeds, self._clock = volume, throttle, runs, seeds, clock
        self._manners, self._decision, self._seen = Manners.of(settings), Decision(), Seen()
        self._today = today
        self._machine, self._looked_at, self._said_unknown = machine, float("-inf"), set[str]()
        self.has_looked = asyncio.Event()  # at the machine: before, no run is to be entered
        self._file, self._asked = asked, asked.load()
        self._reasons: list[Reason] = []
        self._since: float | None = None
        self._is_warned = False
        self._tasks = Tasks(lambda error: log.error("the runs cannot be entered again", exc_info=error))
        self._freeing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._judge()  # before a run is entered

    async def run(self) -> None:
        """Check again and again until cancelled; then write the count to disk."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK)
        finally:
            await self._left()
            await self._tasks.close()
            self._volume.write(self._volume.record())
            self._today.write(self._today.record())

    async def look(self) -> None:
        """Warn, pause or continue."""
        is_warned, self._is_warned = self._is_warned, self._volume.is_nearly_used_up
        if self._is_warned and not is_warned and not self._volume.is_used_up:
            warn(log, "volume-nearly-used-up", self._nearly())
        if not 0 <= (now := self._clock()) - self._looked_at < LOOK_AT_MACHINE:
            self._looked_at, self._seen = now, await self._machine.look(self._manners)
            self._say_unknown()
        self._decide()
        self.has_looked.set()
        if self._volume.is_worth_saving():
            NOTES.offer(partial(self._volume.write, self._volume.record()))  # in the background
        if self._today.is_worth_saving():
            NOTES.offer(partial(self._today.write, self._today.record()))

    # -- what the owner asks ----------------------------------------------------------------------------------

    async def pause(self, seconds: float | None = None) -> PauseStatus:
        """Pause for so many seconds, or until `resume`; returns once the devices are free, or after FREED_WITHIN."""
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise LocalError(f"a pause of {seconds:g} s: give more than nothing, and at most a year")
        now = self._clock()
        await self._ask(Asked(now, now + seconds if seconds is not None else None))
        return self.status()

    async def resume(self) -> PauseStatus:
        """End the pause that was asked for; the node goes on if there is no other reason."""
        await self._ask(None)
        return self.status()

    async def _ask(self, asked: Asked | None) -> None:
        self._asked = asked
        self._decide()
        if asked is not None and self._freeing is not None:
            await asyncio.wait([self._freeing], timeout=FREED_WITHIN)
        await NOTES.run(self._file.save, asked)

    def apply(self, settings: NodeSettings) -> None:
        """The owner's limits and rules from now on."""
        self._throttle.up.cap(settings.max_up)
        self._throttle.down.cap(settings.max_down)
        self._volume.limit, self._manners = settings.max_per_day, Manners.of(settings)
        self._seen, self._looked_at = Seen(), float("-inf")  # with the next look
        self._decide()

    # -- carrying it out --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        was_paused = bool(self._reasons)
        self._judge()
        if self._reasons and not was_paused:
            self._freeing = self._tasks.spawn(self._runs.free_devices())
            self._leaving = self._tasks.spawn(self._leave(self._freeing))
        elif was_paused and not self._reasons:
            log.info("nothing keeps this node paused any more: it goes on")
            self._tasks.spawn(self._go_on())

    def _judge(self) -> None:
        now, before = self._clock(), self._reasons
        used_up = self._used_up() if self._volume.is_used_up else None
        self._reasons = self._decision.reasons(now, self._manners, self._seen, self._asked, used_up)
        self._say_paused(in_words(self._reasons))
        for each in self._reasons:
            if each.code not in [past.code for past in before]:
                self._log(each)
        if not (before and self._reasons):
            self._since = now if self._reasons else None

    def _say_paused(self, why: str) -> None:
        self._throttle.is_shut = self._runs.data.is_paused = bool(why)
        self._runs.paused = why

    def _log(self, reason: Reason) -> None:
        if reason.code == VOLUME:
            warn(log, "volume-used-up", in_words([reason]))
        else:
            log.info("%s", in_words([reason]), extra={"code": "paused"})

    def _say_unknown(self) -> None:
        for key, words in self._machine.unknown.items():
            if key not in self._said_unknown:
                self._said_unknown.add(key)
                warn(log, "rule-without-effect", f"--{key} has no effect here: {words}")

    async def _leave(self, freeing: asyncio.Task[None]) -> None:
        await asyncio.wait([freeing])
        await NOTES.run(self._volume.write, self._volume.record())
        await self._runs.pause()

    async def _go_on(self) -> None:
        await self._left()
        await self._runs.restore(list(self._seeds()))

    async def _left(self) -> None:
        """Return when the runs are left, if they are being left just now."""
        if self._leaving is not None and not self._leaving.done():
            await asyncio.wait([self._leaving])

    # -- in words -------------------------------------------------------------------------------------------

    def status(self) -> PauseStatus:
        """Whether the node is paused, and why."""
        return {
            "paused": bool(self._reasons),
            "reasons": [each.words for each in self._reasons],
            "codes": [each.code for each in self._reasons],
            "since": self._since,
            "until": pause_ends(self._reasons),
            "freed": bool(self._reasons) and self._runs.devices_are_free,
        }

    def as_json(self) -> LimitsStatus:
        """For `status`: the owner's limits, and how much of them is used."""
        throttle, volume = self._throttle, self._volume
        return {
            "paused": self._runs.paused or None,
            "pause": self.status(),
            "warnings": self._warnings(),
            "limits": {
                "max_up": throttle.up.rate,
                "max_down": throttle.down.rate,
                "max_per_day": volume.limit,
                "used_today": volume.used,
                "goes_on_at": pause_ends(self._reasons),
            },
            "today": self._today.as_json(),
            "traffic": {"sent": throttle.up.total, "received": throttle.down.total},
        }

    def _warnings(self) -> list[NodeWarning]:
        found: list[NodeWarning] = [
            {"code": "rule-without-effect", "words": f"--{key} has no effect here: {words}"}
            for key, words in self._machine.unknown.items()
        ]
        if self._volume.is_nearly_used_up and not self._volume.is_used_up:
            found.append({"code": "volume-nearly-used-up", "words": self._nearly()})
        return found

    def _nearly(self) -> str:
        words = f"more than {NEARLY:.0%} of the {as_volume(self._volume.limit or 0)} that may pass today have passed"
        return f"{words}; when all have, this node pauses its runs until {self._next_day()}"

    def _used_up(self) -> Reason:
        words = f"the {as_volume(self._volume.limit or 0)} that may pass a day (--max-per-day) have passed"
        until = self._volume.goes_on_at
        return Reason(VOLUME, f"{words}; this node goes on by itself at {self._next_day()}", until)

    def _next_day(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._volume.goes_on_at))

"""Carries out what rules.py decides: the node pauses while there is a reason, and enters its runs again after it.

Rules:
- A node that pauses first ends its workers, so that its devices are free within two seconds. Then it leaves its runs as
  a node that stops: it says goodbye, so that the others decide without it and nobody waits, and saves what must be
  saved. It serves no data and relays nothing for others.
- It still answers the API, and other peers can find it: control messages pass, some kilobytes a minute. Runs that it is
  to join have to wait.
- When no reason is left it enters its runs again, as after a restart.
- The machine is looked at before the first run is entered, and then every few seconds, beside all else: neither a
  system nor a disk that does not answer delays a pause.
- Runs that could not be left are left again after a while.
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
from typing import TypeVar

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
LOOKED_WITHIN = 30.0  # seconds after which runs are entered whether or not the machine has told all
LEAVE_AGAIN = 30.0  # seconds until runs that could not be left are left again
DISK_ANSWERS = 5.0  # seconds that a pause waits for a note on the disk
LEFT_WITHIN = 5.0  # seconds that the answer to `pause` waits until the devices are free and the runs are left
LATEST = 1e11  # seconds since 1970: some thousand years, which each system's calendar can tell

T = TypeVar("T")

log = logging.getLogger("shoal.daemon")


class AskedFile:
    """Keeps the pause that a person has asked for. What cannot be read or written is logged, and stops nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Asked | None:
        """The pause that was asked for, if any."""
        try:
            found = json.loads(self._path.read_bytes())
            return _checked(float(found["since"]), None if found["until"] is None else float(found["until"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            words = f"{self._path} is damaged or cannot be read ({error}); the node is paused until `shoal resume`"
            warn(log, "pause-damaged", words)
            return Asked(None)  # whoever has asked for it does not want the machine to be used

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


def _checked(since: float, until: float | None) -> Asked:
    """ValueError if that is no pause that `Pausing.pause` begins."""
    if not 0 <= since <= LATEST or not (until is None or since < until <= since + MOST_SECONDS):
        raise ValueError(f"no pause lasts from {since:g} to {until}")
    return Asked(since, until)


async def _note(write: Callable[[T], None], note: T) -> None:
    """Write a small file after those before it; return after DISK_ANSWERS if the disk hangs, and leave it to that."""
    await asyncio.wait([asyncio.wrap_future(NOTES.begin(partial(write, note)))], timeout=DISK_ANSWERS)


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
        self._machine, self._looked_at = machine, float("-inf")
        self._unknown: dict[str, str] = {}  # see Machine, as of the last look
        self._said_unknown = set[str]()
        self._looking: asyncio.Task[None] | None = None
        self.has_looked = asyncio.Event()  # at the machine: before, no run is to be entered
        self._file, self._asked = asked, asked.load()
        self._reasons: list[Reason] = []
        self._since: float | None = None
        self._is_warned = False
        self._tasks = Tasks(lambda error: log.error("this machine cannot be looked at", exc_info=error))
        self._freeing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._left_at = float("-inf")
        self._judge()  # before a run is entered

    async def run(self) -> None:
        """Check again and again until cancelled; then write the count to disk."""
        patience = asyncio.get_running_loop().call_later(LOOKED_WITHIN, self.has_looked.set)
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK)
        finally:
            patience.cancel()
            await self._left()
            await self._tasks.close()
            await self._machine.close()
            await _note(self._volume.write, self._volume.record())
            await _note(self._today.write, self._today.record())

    def look(self) -> None:
        """Warn, pause or continue."""
        is_warned, self._is_warned = self._is_warned, self._volume.is_nearly_used_up
        if self._is_warned and not is_warned and not self._volume.is_used_up:
            warn(log, "volume-nearly-used-up", self._nearly())
        self._decide()
        is_due = not 0 <= (now := self._clock()) - self._looked_at < LOOK_AT_MACHINE
        if is_due and (self._looking is None or self._looking.done()):
            self._looked_at = now
            self._looking = self._tasks.spawn(self._look_at_machine())
        if self._volume.is_worth_saving():
            NOTES.offer(partial(self._volume.write, self._volume.record()))  # in the background
        if self._today.is_worth_saving():
            NOTES.offer(partial(self._today.write, self._today.record()))

    async def _look_at_machine(self) -> None:
        """Beside all else, as the system may take its time to answer."""
        self._seen = await self._machine.look(self._manners)
        self._unknown = dict(self._machine.unknown)
        self._say_unknown()
        self._decide()
        if self._machine.knows(self._manners):
            self.has_looked.set()

    # -- what the owner asks ----------------------------------------------------------------------------------

    async def pause(self, seconds: float | None = None) -> PauseStatus:
        """Pause for so many seconds, or until `resume`; returns once the runs are left, or after LEFT_WITHIN."""
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise LocalError(f"a pause of {seconds:g} s: give more than nothing, and at most a year", code="bad-value")
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
        await _note(self._file.save, asked)  # before we wait for more, so that the last to ask is the last saved
        if asked is not None and self._leaving is not None:  # which begins when the devices are free
            await asyncio.wait([self._leaving], timeout=LEFT_WITHIN)

    def apply(self, settings: NodeSettings) -> None:
        """The owner's limits and rules from now on."""
        self._throttle.up.cap(settings.max_up)
        self._throttle.down.cap(settings.max_down)
        self._volume.limit, self._manners = settings.max_per_day, Manners.of(settings)
        self._looked_at = float("-inf")  # what new rules need is known after the next look
        self._decide()

    # -- carrying it out --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        was_paused = bool(self._reasons)
        self._judge()
        if self._reasons and (not was_paused or self._must_leave_again()):
            self._left_at = self._clock()
            self._freeing = self._tasks.spawn(self._free())
            self._leaving = self._tasks.spawn(self._leave(self._freeing))
        elif was_paused and not self._reasons:
            log.info("nothing keeps this node paused any more: it goes on")
            self._tasks.spawn(self._go_on())

    def _must_leave_again(self) -> bool:
        """Whether runs are still open, and it is a while since we tried to leave them."""
        is_soon = 0 <= self._clock() - self._left_at < LEAVE_AGAIN
        return bool(self._runs.open) and not self._is_leaving and not is_soon

    @property
    def _is_leaving(self) -> bool:
        return self._leaving is not None and not self._leaving.done()

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
        for key, words in self._unknown.items():
            if key not in self._said_unknown:
                self._said_unknown.add(key)
                warn(log, "rule-without-effect", f"--{key} has no effect here: {words}")

    async def _free(self) -> None:
        try:
            await self._runs.free_devices()
        except Exception:  # logged whole: leaving ends the workers, too, and must not wait for it
            log.exception("the workers cannot be ended before the runs are left")

    async def _leave(self, freeing: asyncio.Task[None]) -> None:
        await asyncio.wait([freeing])
        try:
            await self._runs.pause()
        except Exception:  # logged whole: the rules go on, and it is tried again
            log.exception("not all runs can be left; trying again in %g s", LEAVE_AGAIN)
        await _note(self._volume.write, self._volume.record())

    async def _go_on(self) -> None:
        await self._left()
        try:
            await self._runs.restore(list(self._seeds()))
        except Exception:  # logged whole: it must not end the rules for pausing, nor the node
            log.exception("the runs cannot be entered again")

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
            "left": bool(self._reasons) and not self._is_leaving and not self._runs.open,
            "unsaved": self._runs.unsaved,
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
            for key, words in self._unknown.items()
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

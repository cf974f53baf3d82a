"""Counts what the node has done and sent since midnight (UTC, as for the daily volume), also over restarts.

The file is a help for people: what cannot be read of it counts from zero, and a crash loses a few minutes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from shoal.node.api.answers import Today
from shoal.node.base.disk import replace_file

SAVE_EVERY = 300.0  # seconds

log = logging.getLogger("shoal.daemon")


class TodayCount:
    """`total` gives what was done since the process began; all its numbers only grow."""

    def __init__(self, path: Path, total: Callable[[], Today], clock: Callable[[], float] = time.time) -> None:
        self._path, self._total, self._clock = path, total, clock
        self._begin, self._saved_at = total(), clock()
        self._day = self._date()
        self._before = self._load()  # today, in earlier lives of the node

    def as_json(self) -> Today:
        """What was done today, as far as is known."""
        now = self._total()
        if self._date() != self._day:
            self._day, self._begin, self._before = self._date(), now, _nothing()
        before, begin = self._before, self._begin
        return {
            "rounds": before["rounds"] + now["rounds"] - begin["rounds"],
            "sent": before["sent"] + now["sent"] - begin["sent"],
            "received": before["received"] + now["received"] - begin["received"],
        }

    def is_worth_saving(self) -> bool:
        """Whether the last write was a while ago."""
        return not 0 <= self._clock() - self._saved_at < SAVE_EVERY

    def record(self) -> bytes:
        """The content of the file as of now, which is taken to be saved."""
        self._saved_at = self._clock()
        done = self.as_json()
        return json.dumps({"day": self._day, **done}).encode()

    def write(self, record: bytes) -> None:
        """Write the file. Blocks as long as the disk does; may be called in any thread."""
        try:
            replace_file(self._path, [record])
        except OSError as error:
            log.info("cannot write %s: %s; after a restart today counts anew", self._path, error.strerror)

    def _load(self) -> Today:
        try:
            found = json.loads(self._path.read_bytes())
            if found["day"] != self._day:
                return _nothing()
            return {"rounds": int(found["rounds"]), "sent": int(found["sent"]), "received": int(found["received"])}
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return _nothing()

    def _date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def _nothing() -> Today:
    return {"rounds": 0, "sent": 0, "received": 0}

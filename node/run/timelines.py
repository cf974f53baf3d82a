"""The timelines of a run's last rounds: in memory, and in one file of JSON lines, so that a restart knows them.

A round is written some time after its end, because its last votes and payloads come late. What cannot be written is
said once and costs nothing else: nobody votes on it. The file is forced to no disk, and begins anew before it is long.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from pathlib import Path

from shoal.node.logs import warn
from shoal.node.run.phases import PhaseLog
from shoal.node.run.timeline import Timeline, Trace
from shoal.node.run.timeline_json import as_json
from shoal.node.service import Answer, UnknownRound
from shoal.protocol.account import Link
from shoal.protocol.effects import Event
from shoal.protocol.ids import PeerId
from shoal.protocol.milestones import Begun
from shoal.protocol.replicas.events import Met

KEPT = 64  # rounds
NAME = "rounds.jsonl"
LINGER = 1.0  # seconds from a round's end until it is written

log = logging.getLogger("shoal.run")


class Timelines:
    """Of one run on this node; `now` is the time of the event loop."""

    def __init__(
        self,
        me: PeerId,
        folder: Path,
        write: Callable[[Callable[[], None]], object] = call,
        kept: Sequence[tuple[int, str]] | None = None,
    ) -> None:
        """`write` has something written, some time, one after the other; `kept` is what was read of it before."""
        self.links: Callable[[], Sequence[Link]] = tuple  # whom we are connected with, and how
        self._live = Timeline()
        self.sent, self.received = self._live.sent, self._live.received  # see there
        self._me = me
        self._path, self._write = folder / NAME, write
        self._ending: list[Trace] = []  # rounds that are over, and not written yet
        self._lines = dict((kept_in(folder) if kept is None else kept)[-KEPT:])  # by round
        self._written = 2 * KEPT if self._lines else 0  # lines of the file; what an earlier life left may be damaged
        self._has_failed = False

    def observe(self, now: float, phase: str, round: int, phases: PhaseLog) -> bool:
        """The member is in `phase` of `round`, 0: of the same; whether a round has ended: `keep` is due in LINGER."""
        done = self._live.observe(now, phase, round)
        if done is None:
            return False
        done.waited = phases.waited()
        self._note_paths(done)
        self._ending.append(done)
        return True

    def told(self, now: float, event: Event) -> None:
        """The member has told us something."""
        self._live.told(now, event)
        if isinstance(event, Begun) and self._live.current is not None:
            self._note_paths(self._live.current)
        if isinstance(event, Met) and self._live.current is not None:
            paths = {link.peer: link.path for link in self.links() if link.peer == event.partner}
            self._live.current.paths |= paths

    def keep(self, now: float) -> None:
        """Write the rounds that are over."""
        for trace in self._ending:
            self._keep(trace.round, json.dumps(self._as_json(trace, now)))
        self._ending.clear()

    def find(self, now: float, round: int) -> Answer:
        """A round's timeline, also of the one that goes on; UnknownRound if nothing of it is kept."""
        for trace in (self._live.current, *self._ending):
            if trace is not None and trace.round == round:
                return self._as_json(trace, now)
        if round in self._lines:
            found: Answer = json.loads(self._lines[round])
            return found
        raise UnknownRound(f"nothing is known of round {round}: {self._words()}")

    # -- inside ---------------------------------------------------------------------------------------------

    def _as_json(self, trace: Trace, now: float) -> Answer:
        return as_json(trace, self._me, now, time.time())

    def _note_paths(self, trace: Trace) -> None:
        members = trace.plan.members if trace.plan is not None else ()
        trace.paths |= {link.peer: link.path for link in self.links() if link.peer in members}

    def _words(self) -> str:
        """Which rounds are known, in a phrase."""
        live = [trace.round for trace in (*self._ending, self._live.current) if trace is not None]
        known = sorted({*self._lines, *live})
        if not known:
            return "this node has seen none of this run yet"
        return f"this node keeps the last {KEPT} that it saw, and has rounds {_ranges(known)}"

    def _keep(self, round: int, line: str) -> None:
        self._lines.pop(round, None)
        self._lines[round] = line
        while len(self._lines) > KEPT:
            del self._lines[next(iter(self._lines))]
        is_anew = self._written >= 2 * KEPT
        self._written = len(self._lines) if is_anew else self._written + 1
        text = "".join(f"{each}\n" for each in (self._lines.values() if is_anew else [line]))
        self._write(partial(self._put, text, is_anew))

    def _put(self, text: str, is_anew: bool) -> None:
        try:
            if is_anew:
                fresh = self._path.with_suffix(".new")
                fresh.write_text(text, encoding="utf-8")
                fresh.replace(self._path)
            else:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            if not self._has_failed:
                warn(log, "timeline-not-written", f"cannot write {self._path}: {error.strerror}; rounds go on without")
            self._has_failed = True


def kept_in(folder: Path) -> list[tuple[int, str]]:
    """The rounds of a run's file and their lines, oldest first; what is damaged is passed over."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: dict[int, str] = {}
    for line in lines:
        try:
            round = int(json.loads(line)["round"])
        except (ValueError, TypeError, LookupError, RecursionError):
            continue
        found.pop(round, None)
        found[round] = line
    return list(found.items())


def _ranges(rounds: Sequence[int]) -> str:
    """1 to 3, 5: a sorted list in few words."""
    parts: list[list[int]] = []
    for each in rounds:
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ", ".join(" to ".join(map(str, part)) for part in parts)

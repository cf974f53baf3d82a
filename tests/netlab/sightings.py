"""What the members of a run have said over time: the rounds that they know, the losses, and what holds them up.

A pause is a time without a decided round. It was announced if at some moment of it most of the members said that the
run lacks a quorum, or members: a few who are cut off from the others say so of themselves alone.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answers = Mapping[str, Any]


@dataclass(frozen=True)
class Pause:
    """A time without a decided round."""

    begin: float  # seconds since 1970
    seconds: float
    why: tuple[str, ...]  # what most members said meanwhile; empty: it was not announced
    load: float  # the machine's load average, at most: without a processor nothing goes on

    def __str__(self) -> str:
        return f"no round for {self.seconds:.1f} s, load {self.load:.1f}: {'; '.join(self.why) or 'not announced'}"


class Sightings:
    """Filled look by look."""

    def __init__(self) -> None:
        self._decided: dict[int, float] = {}  # when the first member had applied a round
        self._losses: dict[int, dict[str, float]] = {}  # by round and member
        self._said: list[tuple[float, str]] = []
        self._loads: list[tuple[float, float]] = []

    def take(self, statuses: Sequence[Answers], rounds: Mapping[str, list[Answers]]) -> None:
        """One look: the statuses, and the newest rounds, of those members who have answered."""
        now = time.time()
        for member, rows in rounds.items():
            for row in rows:
                self._decided[row["round"]] = min(row["applied_at"], self._decided.get(row["round"], now))
                if row["loss"] is not None:
                    self._losses.setdefault(row["round"], {})[member] = row["loss"]
        said = [words for status in statuses if (words := explanation(status))]
        if 2 * len(said) > len(statuses):
            self._said.append((now, said[0]))
        self._loads.append((now, os.getloadavg()[0]))

    @property
    def newest(self) -> int:
        """The last round that was decided."""
        return max(self._decided, default=0)

    def pauses(self, longer_than: float) -> list[Pause]:
        """All that took more seconds, up to now."""
        times = [*sorted(self._decided.values()), time.time()]
        return [self._pause(begin, end) for begin, end in itertools.pairwise(times) if end - begin > longer_than]

    def loss(self, part: int, parts: int) -> float:
        """The mean training loss in one of so many equal parts of all rounds."""
        means = [statistics.fmean(losses.values()) for _, losses in sorted(self._losses.items())]
        size = len(means) // parts
        return statistics.fmean(means[part * size : (part + 1) * size])

    def _pause(self, begin: float, end: float) -> Pause:
        why = tuple(dict.fromkeys(words for at, words in self._said if begin < at < end))
        load = max((load for at, load in self._loads if begin < at < end), default=0.0)
        return Pause(begin, end - begin, why, load)


def explanation(status: Answers) -> str:
    """Why no round can be decided, by the status of a node; empty if it does not say so."""
    for run in status.get("runs", ()):
        words = str(run["waiting_for"])
        if "until a quorum" in words or " waits: " in words:
            return words
    evidence = str(status.get("evidence"))
    return evidence if "no quorum" in evidence else ""

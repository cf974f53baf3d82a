"""A run whose members are killed while it is measured, of whichever system; what goodput.py asks of it."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kit.daemons import TooLate

PATIENCE = 180.0  # seconds, of a busy machine, until all take part


@dataclass(frozen=True, slots=True)
class Round:
    """The run's members have averaged."""

    number: int
    at: float  # seconds, of any one clock
    samples: int  # tokens behind the run until then


@dataclass(frozen=True, slots=True)
class Window:
    """What one window has shown."""

    goodput: float  # tokens a second
    pause: float  # seconds, the longest without a round


class Swarm(ABC):
    """One run and its members, of which one after the other is struck."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0

    @abstractmethod
    def settle(self) -> None:
        """Wait until all have taken part in the last rounds."""

    @abstractmethod
    def last(self, count: int) -> Sequence[Round]:
        """The last rounds."""

    @abstractmethod
    def kill(self, member: int) -> None:
        """This one dies by SIGKILL and is started again; that is not waited for."""

    def blows(self) -> Mapping[str, Callable[[], None]]:
        """What strikes, by the kind of window."""
        return {"calm": lambda: None, "kills": lambda: self.kill(self.advance())}

    def window(self, seconds: float, every: float, blow: Callable[[], None]) -> Window:
        """So many seconds, with a blow each time that `every` seconds are over."""
        first, begun = self.last(1)[-1], time.monotonic()
        blows = 0
        while (passed := time.monotonic() - begun) < seconds:
            if passed >= (blows + 0.5) * every:
                blows += 1
                blow()
            time.sleep(0.05)
        rounds = [each for each in self.last(1000) if each.number >= first.number]
        if len(rounds) < 2:
            raise TooLate(f"no round in {seconds:g} s")
        gaps = [after.at - before.at for before, after in itertools.pairwise(rounds)]
        return Window((rounds[-1].samples - first.samples) / (rounds[-1].at - rounds[0].at), max(gaps))

    def advance(self) -> int:
        """Whose turn it is to be struck."""
        self._next += 1
        return self._next % self._size

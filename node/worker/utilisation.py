"""How much of its time a worker trains: the rest it waits for the network, or takes in what came from there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STINTS = 16  # that count


class Utilisation:
    """The share of time in which `working` was under way, over the latest stints."""

    def __init__(self) -> None:
        self._stints: deque[tuple[float, float]] = deque(maxlen=STINTS)  # when each began and ended
        self._began: float | None = None

    @contextmanager
    def working(self, clock: Callable[[], float]) -> Iterator[None]:
        """A stint of work."""
        self._began = clock()
        yield
        self._stints.append((self._began, clock()))
        self._began = None

    def share(self, now: float) -> float:
        """From 0 to 1; 1 until there was a pause."""
        stints = [*self._stints, *([(self._began, now)] if self._began is not None else [])]
        if not stints or now <= stints[0][0]:
            return 1.0
        return sum(end - start for start, end in stints) / (now - stints[0][0])

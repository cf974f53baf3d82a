"""Several calls at once, each of which may fail: experts compute side by side, or wait for their peers side by side.

Those that compute here take turns, as many at once as there are cores for; those that wait need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import TypeVar

from shoal.node.serve.expert import Expert, Weighed
from shoal.node.serve.scorer import LogProbs, Piece

T = TypeVar("T")


class SideBySide:
    """Threads for at most `at_once` calls."""

    def __init__(self, at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="expert") if at_once > 1 else None

    def call(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """What each gives or raises, in their order, when all are done."""
        if self._pool is None or len(calls) == 1:
            return [_attempt(each) for each in calls]
        return list(self._pool.map(_attempt, calls))


class InTurn:
    """See Expert: one that computes here, once it has a turn."""

    def __init__(self, expert: Expert, turns: Semaphore) -> None:
        self._expert, self._turns = expert, turns
        self.vocab, self.limit, self.slots, self.version = expert.vocab, expert.limit, expert.slots, expert.version

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        with self._turns:
            return self._expert.extend(pieces)

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        with self._turns:
            return self._expert.weigh(pieces)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._expert.end(slot)


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # of a model's own code, out of memory, of the network: it is judged by who called
        return error

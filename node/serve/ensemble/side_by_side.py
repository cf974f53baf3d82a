"""Several calls at once, each of which may fail: experts compute side by side, or wait for their peers side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # of a model's own code, out of memory, of the network: it is judged by who called
        return error

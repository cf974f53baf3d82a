"""Function calls from threads to the event loop, in order, many for each wake-up.

Waking the loop costs more than most of the calls, so it is woken only once until it has looked. A long turn is
interrupted, so that messages and timers do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

TURN = 0.005  # seconds of the loop at a time

log = logging.getLogger(__name__)


class Posts:
    """The calls that wait for the loop in which this was made; `post` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a plain function in the loop."""
        self._waiting.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._is_woken = False  # before we look, so that no call is missed; one wake-up may be for nothing
        due = time.monotonic() + TURN
        while self._waiting:
            function, args = self._waiting.popleft()
            try:
                function(*args)
            except Exception:  # our own mistake with one of them
                log.exception("a call from a thread has failed")
            del function, args  # they may hold a payload
            if time.monotonic() > due and self._waiting:
                if not self._is_woken:
                    self._is_woken = True
                    self._loop.call_soon(self._look)
                return

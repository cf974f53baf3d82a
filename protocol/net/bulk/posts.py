"""From threads to the event loop: plain calls, in their order, many at a wake-up.

To wake the loop costs more than most of what it is woken for; so while it has not looked yet, nobody wakes it again.
A long turn is cut, so that words and timers are not kept waiting.
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
    """Belongs to the loop in which it is made; `post` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop call a plain function, soon."""
        self._waiting.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed; nobody is left to be told
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._is_woken = False  # before we look: what is posted from now on wakes us again, perhaps for nothing
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

"""The tasks of one owner: none is lost on the way, what one raises is told, and all end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """`failed` hears of what a task raises, if it is an Exception; a task that was cancelled has not failed."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin `work`, side by side with the others; once the owner has ended it is dropped unbegun."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    async def close(self) -> None:
        """Cancel them all, and wait until they have ended; what they spawn at their end is dropped."""
        self._is_closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed(error)

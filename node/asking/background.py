"""An asyncio loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs until the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="asking", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it, when it is done."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def soon(self, work: Callable[..., object], *args: object) -> None:
        """Call it in the loop, after all that was asked for before."""
        self._loop.call_soon_threadsafe(work, *args)


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of it side by side; what the first to fail has raised, when the others have ended, too."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

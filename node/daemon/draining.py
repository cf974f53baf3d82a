"""Waits until the rounds under way are committed here, for a node that is to stop after them.

A run is not waited for if it has failed or is finished, is not open any more, or lacks the members for another round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.node.run.run import Run

WITHIN = 600.0  # seconds, unless the caller says another time
LOOK = 0.2  # seconds between two checks

log = logging.getLogger("shoal.daemon")


async def rounds_end(runs: Callable[[], Iterable[Run]], within: float | None = None) -> None:
    """Return when the rounds that are under way now are over, or so many seconds have passed."""
    under_way = {run.id: run.committed.current.round for run in runs()}

    def waited_for() -> list[str]:
        return [
            run.manifest.name
            for run in runs()
            if run.id in under_way and run.committed.current.round <= under_way[run.id] and _goes_on(run)
        ]

    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN if within is None else within):
            while waited_for():
                await asyncio.sleep(LOOK)
    if left := waited_for():
        log.info("the rounds of %s are not over; this node stops nevertheless", " and ".join(left))


def _goes_on(run: Run) -> bool:
    """Whether another round may be committed here, as far as is known."""
    is_lonely = run.is_resting or (run.is_alone and run.manifest.rounds.min_members > 1)
    return not (run.failure or run.is_finished or is_lonely)

"""The end of all runs of a node, side by side: what befalls one keeps no other from being saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.protocol.errors import ShoalError

if TYPE_CHECKING:
    from shoal.node.run.run import Run

log = logging.getLogger("shoal.daemon")


async def end_all(runs: Sequence[Run]) -> list[str]:
    """End them; of those that did not end well, which it is and why."""
    ends = await asyncio.gather(*(run.close() for run in runs), return_exceptions=True)
    failed = [(run.manifest.name, end) for run, end in zip(runs, ends, strict=True) if end is not None]
    for name, error in failed:
        trace = None if isinstance(error, ShoalError) else error
        log.error("run %s did not end well: %s", name, error, exc_info=trace, extra={"code": "run-not-ended"})
    return [f"the run {name} did not end well: {_words(error)}" for name, error in failed]


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"

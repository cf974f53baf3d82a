"""What a run needs to know of the node that it is on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.node.checkpoint.keep import Keeping
from shoal.node.faults import FaultTrigger


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Private to the node; nothing of it is agreed with others."""

    folder: Path  # the run's own
    threads: int  # of the worker
    data: tuple[str, ...]
    trains: bool
    keeping: Keeping
    fault: FaultTrigger | None = None

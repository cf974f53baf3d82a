"""A process that writes checkpoints in a loop, until somebody kills it."""

from __future__ import annotations

import itertools
from pathlib import Path

from shoal.node.training.checkpoint.keep import prune
from shoal.node.training.checkpoint.scan import newest_first
from shoal.node.training.checkpoint.write import sweep
from tests.unit.checkpoint_kit import write


def main(folder: Path) -> None:
    """Write one checkpoint after the other, from the last one of an earlier life on; announce each complete one."""
    begin = max((each.about.round for each in newest_first(folder) if each.about is not None), default=0) + 1
    for round in itertools.count(begin):
        sweep(folder)
        print(f"begin {round}", flush=True)
        write(folder, round)
        print(f"whole {round}", flush=True)
        prune(folder, 3)

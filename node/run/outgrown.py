"""Deletes the kept state of a resting run once a later round is committed here.

Then others have a later state, and we have voted beyond the kept one: no restart could go on from it, and it would only
fill the disk.
"""

from __future__ import annotations

from pathlib import Path

from shoal.node.base.pools import DISK
from shoal.node.run.resting import forget_rest
from shoal.protocol.rounds.rest import Rest


async def unless_outgrown(rest: Rest | None, round: int, run_folder: Path) -> Rest | None:
    """`rest`, or None, and deleted on disk, if `round`, which was committed, is later than its newest round."""
    if rest is None or round <= rest.newest:
        return rest
    await DISK.run(forget_rest, run_folder)
    return None

"""What was kept of a run is outgrown when a later round is committed here.

Then others have a later state, and we have voted beyond the one that was kept: no restart could go on from it, and it
would only fill the disk.
"""

from __future__ import annotations

from pathlib import Path

from shoal.node.base.pools import DISK
from shoal.node.run.resting import forget_rest
from shoal.protocol.rounds.rest import Rest


async def unless_outgrown(rest: Rest | None, round: int, run_folder: Path) -> Rest | None:
    """`rest` as long as no later round than its own is committed; then it is forgotten on disk, too."""
    if rest is None or round <= rest.newest:
        return rest
    await DISK.run(forget_rest, run_folder)
    return None

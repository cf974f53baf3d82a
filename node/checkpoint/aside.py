"""Checkpoints in a run's folder that the history we are in has not made: they are set aside, not counted, not lost.

A run's id does not name its author, so a founder that has lost its home and founds the run anew, or a swarm that went
back behind its last rounds, makes rounds whose numbers were here before. What is of a later round than the one that we
are in, or of the same round with another state, is of that other history.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from shoal.node.checkpoint.about import About
from shoal.node.checkpoint.scan import CHECKPOINTS, newest_first
from shoal.node.disk import force
from shoal.node.logs import warn

log = logging.getLogger("shoal.checkpoint")


def set_aside(folder: Path, ours: About) -> None:
    """Move what cannot be of our history out of `folder`, beside it, where `shoal ckpt ls` still finds it. OSError."""
    for found in newest_first(folder):
        other = found.about
        if other is None or other.round < ours.round or (other.round, other.root) == (ours.round, ours.root):
            continue
        place = folder.parent / f"set-aside-{other.root[:8]}" / CHECKPOINTS
        place.mkdir(parents=True, exist_ok=True)
        if (place / found.path.name).exists():  # the same one was set aside before, from another folder
            shutil.rmtree(found.path)
        else:
            found.path.rename(place / found.path.name)
        for changed in (place, place.parent, folder.parent, folder):
            force(changed)
        warn(
            log, "checkpoint-set-aside", f"the checkpoint of round {other.round} is of another history: now in {place}"
        )

"""Finding checkpoints and glancing at them, without torch and without reading them through.

Whatever begins with a dot is half written or half removed, and is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.node.training.checkpoint.about import ABOUT, About, read_about
from shoal.protocol.base.errors import LocalError

CHECKPOINTS = "checkpoints"  # the folder within a run's
PREFIX = "round-"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A folder that is a checkpoint, or was to be one: `problem` says why it is none."""

    path: Path
    about: About | None
    problem: str = ""


def folder_name(round: int) -> str:
    """The name of a round's checkpoint; names sort as their rounds do."""
    return f"{PREFIX}{round:08}"


def find(place: Path) -> list[FoundCheckpoint]:
    """All checkpoints in a place: one itself, the folder of some, a node's home, the folder of a whole play."""
    if not place.is_dir():
        raise LocalError(f"{place} is not a folder")
    return [glance(path) for path in sorted(_candidates(place))]


def newest_first(checkpoints: Path) -> list[FoundCheckpoint]:
    """What lies in one run's folder of checkpoints; nothing if there is no such folder."""
    return [glance(path) for path in sorted(checkpoints.glob(f"{PREFIX}*"), reverse=True)]


def glance(path: Path) -> FoundCheckpoint:
    """Look at one folder."""
    try:
        return FoundCheckpoint(path, read_about(path))
    except LocalError as error:
        return FoundCheckpoint(path, None, str(error))


def _candidates(place: Path) -> Iterator[Path]:
    if (place / ABOUT).exists() or place.name.startswith(PREFIX):
        yield place
    elif place.name == CHECKPOINTS:
        yield from place.glob(f"{PREFIX}*")
    else:
        yield from place.rglob(f"{CHECKPOINTS}/{PREFIX}*")

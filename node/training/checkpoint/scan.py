"""Finds checkpoints and reads their descriptions, without torch and without reading all of their bytes.

Names that begin with a dot are of half written or half removed checkpoints, and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from shoal.node.api.answers import Checkpoint
from shoal.node.training.checkpoint.about import ABOUT, About, read_about
from shoal.protocol.base.errors import LocalError

CHECKPOINTS = "checkpoints"  # the folder within a run's
PREFIX = "round-"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A folder with a checkpoint's name; if it cannot be used, `about` is None and `problem` says why."""

    path: Path
    about: About | None
    problem: str = ""


def as_json(found: FoundCheckpoint) -> Checkpoint:
    """A checkpoint for programs: what its description says, unless it is damaged."""
    row: Checkpoint = {"path": str(found.path), "problem": found.problem or None}
    if (about := found.about) is not None:
        told = about.model_dump(mode="json", include={"run", "name", "round", "history", "root", "samples", "peer"})
        row |= cast(Checkpoint, told)
        row |= {"inner_steps": about.inner_steps, "saved_at": about.saved_at, "bytes": about.size}
    return row


def folder_name(round: int) -> str:
    """The name of a round's checkpoint; names sort as their rounds do."""
    return f"{PREFIX}{round:08}"


def find(place: Path) -> list[FoundCheckpoint]:
    """All checkpoints in a place: a checkpoint, a run's folder of them, a node's home, or the folder of `shoal up`.

    Raises LocalError if the place is not a folder.
    """
    if not place.is_dir():
        raise LocalError(f"{place} is not a folder", code="checkpoint-missing")
    return [glance(path) for path in sorted(_candidates(place))]


def newest_first(checkpoints: Path) -> list[FoundCheckpoint]:
    """All checkpoints in one run's folder of them; none if there is no such folder."""
    return [glance(path) for path in sorted(checkpoints.glob(f"{PREFIX}*"), reverse=True)]


def glance(path: Path) -> FoundCheckpoint:
    """Reads the description in one folder."""
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

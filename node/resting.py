"""A run at rest on this node's disk: what is kept when it stops and nobody else may go on with the run.

    runs/<id>/rest/round-...   the state, as a checkpoint
                   words       all else (protocol/rest.py): messages, each after its length

The words are written last, and name their state. They are replaced as a whole at the next such stop, and removed when
we stop and others go on. If they cannot be used the run is entered as if they were not there: others may have it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.node.checkpoint.about import About
from shoal.node.checkpoint.read import Checkpoint, load
from shoal.node.checkpoint.scan import folder_name, newest_first
from shoal.node.checkpoint.write import remove, sweep, write_checkpoint
from shoal.node.disk import force
from shoal.node.logs import warn
from shoal.node.shm import FloatArray
from shoal.node.state import Snapshot
from shoal.protocol.errors import LocalError, RemoteError
from shoal.protocol.member import PART
from shoal.protocol.rest import Rest
from shoal.protocol.wire import Message, decode, encode

FOLDER, WORDS = "rest", "words"  # in a run's folder
LENGTH = 4  # bytes

log = logging.getLogger("shoal.run")


@dataclass(frozen=True, slots=True, eq=False)
class Rested:
    """A run at rest, in memory."""

    rest: Rest
    checkpoint: Checkpoint | None  # of its state; None: that is the state which the run begins with


def save_rest(run: Path, rest: Rest, about: About | None, snapshot: Snapshot, moments: FloatArray | None) -> None:
    """Keep the run of the folder `run`, or LocalError. `snapshot` is leased; without `about` the run began with it."""
    folder = run / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        state = write_checkpoint(folder, about, snapshot, moments) if about is not None else None
        _write(folder / WORDS, rest)
        for found in newest_first(folder):
            if found.path != state:
                remove(found.path)
    except OSError as error:
        raise LocalError(f"cannot keep the run in {folder}: {error.strerror}") from error


def load_rest(run_folder: Path) -> Rested | None:
    """The run at rest in a run's folder; None if there is none, or, said aloud, it cannot be used."""
    folder = run_folder / FOLDER
    if not (folder / WORDS).exists():
        return None
    try:
        rest = Rest.of(_read(folder / WORDS))
        state = folder / folder_name(rest.round)
        checkpoint = load(state) if rest.round > rest.origin[0] else None
        if checkpoint is not None and checkpoint.about.root != rest.root.hex():
            raise LocalError(f"{state} is another state than that of the words beside it")
    except (LocalError, RemoteError, OSError) as error:
        warn(log, "rest-damaged", f"what was kept of the run in {folder} cannot be used: {error}; others may have it")
        return None
    return Rested(rest, checkpoint)


def forget_rest(run_folder: Path) -> None:
    """Others go on, or we have left for good."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def _write(path: Path, rest: Rest) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        for message in rest.messages(PART):
            data = encode(message)
            file.write(len(data).to_bytes(LENGTH, "big"))
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    force(path.parent)


def _read(path: Path) -> Iterator[Message]:
    with path.open("rb") as file:
        while prefix := file.read(LENGTH):
            data = file.read(int.from_bytes(prefix, "big"))
            yield decode(data)

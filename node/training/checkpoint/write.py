"""Writing a checkpoint so that a crash at any instant leaves a whole one or none.

Everything goes to a folder whose name begins with a dot. Each file is forced to disk, then that folder's names, then it
is renamed, then the names of the folder around it. The tensors are written from where they lie, without another copy,
and hashed on the way. All of it may run in a thread: the work is in calls that release the interpreter's lock.

Checkpoints that the history we are in has not made are set aside, not counted, not lost. A run's id does not name its
author, so a founder that has lost its home and founds the run anew, or a swarm that went back behind its last rounds,
makes rounds whose numbers were here before. What is of a later round than the one that we are in, or of the same round
with another state, is of that other history.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.base.disk import force
from shoal.node.base.logs import warn
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.base import FileFacts
from shoal.node.training.checkpoint.about import ABOUT, INNER, PRIVATE, About, file_of
from shoal.node.training.checkpoint.scan import CHECKPOINTS, folder_name, glance, newest_first
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.tensor_file import write_tensors
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.trainer.inner_state import halves, private_views
from shoal.protocol.base.errors import LocalError

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


def write_checkpoint(folder: Path, about: About, snapshot: Snapshot, moments: FloatArray | None) -> Path:
    """Write the checkpoint of `snapshot` into `folder`, and say where; LocalError, and nothing is there, if it fails.

    `about` is without its files. `snapshot` is leased, and `moments` nobody's else. A whole checkpoint of the same
    round and state is as good, and stays; one of another history is set aside.
    """
    path = folder / folder_name(about.round)
    fresh = folder / f".{path.name}.{os.getpid()}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        set_aside(folder, about)
        if glance(path).about is not None:
            return path
        remove(path)
        fresh.mkdir()
        files = _write_files(fresh, snapshot, moments, method_of(about.decoded_manifest(), snapshot.shape.layout).keeps)
        _write_text(fresh / ABOUT, about.model_copy(update={"files": files}).sealed())
        force(fresh)
        fresh.rename(path)
        force(folder)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise LocalError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
    return path


def remove(path: Path) -> None:
    """Remove a checkpoint, if it is there; its name goes first, so that no half of it is ever seen."""
    if path.exists():
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)


def sweep(folder: Path) -> None:
    """Remove what a crash left half written or half removed. Nobody else may be at work in `folder`."""
    for path in folder.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def _write_files(
    folder: Path, snapshot: Snapshot, moments: FloatArray | None, private: Sequence[str]
) -> dict[str, FileFacts]:
    layout = snapshot.shape.layout
    tensors = {file_of(name): layout.views(vector) for name, vector in snapshot.vectors.items()}
    if moments is not None:
        flat = torch.from_numpy(moments)
        tensors[INNER] = _named(layout, halves(flat, layout.size))
        if private:
            tensors[PRIVATE] = _named(layout, private_views(flat, layout.size, private))
    return {file: write_tensors(folder / file, named) for file, named in tensors.items()}


def _named(layout: Layout, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{key}.{name}": view for key, vector in vectors.items() for name, view in layout.views(vector).items()}


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

"""Writes checkpoints so that a crash at any instant leaves a complete one or none.

Everything is written to a folder whose name begins with a dot. Each file is forced to disk, then the folder's entries;
then it is renamed, and the entries of the parent folder are forced to disk. Tensors are written without being copied,
and hashed on the way. All of it may run in a thread: the work is in calls that release the interpreter's lock.

Checkpoints of another history are set aside: neither counted nor deleted. The same round numbers can occur twice, as a
swarm may go back behind its last rounds. A checkpoint is of another history if its round is later than the one that is
being written, or the same with another state.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.base.atomic import force
from shoal.node.base.logs import warn
from shoal.node.base.refusals import CODES
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
    """Moves checkpoints of another history out of `folder`, to where `shoal ckpt ls` still finds them.

    Raises OSError.
    """
    for found in newest_first(folder):
        other = found.about
        if other is None or other.round < ours.round or (other.round, other.root) == (ours.round, ours.root):
            continue
        place = folder.parent / f"set-aside-{other.root[:8]}" / CHECKPOINTS
        place.mkdir(parents=True, exist_ok=True)
        if (place / found.path.name).exists():  # the same checkpoint was set aside before
            shutil.rmtree(found.path)
        else:
            found.path.rename(place / found.path.name)
        for changed in (place, place.parent, folder.parent, folder):
            force(changed)
        warn(
            log, "checkpoint-set-aside", f"the checkpoint of round {other.round} is of another history: now in {place}"
        )


def write_checkpoint(folder: Path, about: About, snapshot: Snapshot, moments: FloatArray | None) -> Path:
    """Writes the checkpoint of `snapshot` into `folder`, and returns its path; LocalError if that fails.

    `about` has no files yet. `snapshot` must be leased, and `moments` not be used elsewhere. A complete checkpoint of
    the same round and state stays as it is; one of another history is set aside.
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
        raise LocalError(
            f"cannot write the checkpoint {path}: {error.strerror or error}",
            code=CODES.get(error.errno or 0, "unwritable"),
        ) from error
    return path


def remove(path: Path) -> None:
    """Removes a checkpoint, if it exists; it is renamed first, so a crash leaves no half of it under its name."""
    if path.exists():
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)


def sweep(folder: Path) -> None:
    """Removes what a crash has left half written or half removed. Nothing else may be writing in `folder`."""
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

"""Loads checkpoints and verifies every byte: the files by their hashes, the state by its root.

A damaged checkpoint is never used in part; `load_newest` takes the one before it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shoal.node.base.logs import warn
from shoal.node.base.room import check_memory
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.about import ABOUT, INNER, PRIVATE, About, file_of, read_about
from shoal.node.training.checkpoint.scan import newest_first
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import layout_of
from shoal.node.training.state.committed import CommittedState, read_back
from shoal.node.training.state.shape import StateShape, shape_of
from shoal.node.training.trainer.inner_state import halves, private_views
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.shortages import is_temporary

log = logging.getLogger("shoal.checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A verified checkpoint in memory."""

    path: Path
    about: About
    manifest: Manifest
    shape: StateShape
    vectors: Mapping[str, Tensor]  # of the committed state
    moments: FloatArray | None  # of the inner optimizer (ipc/vectors.py)

    def committed(self) -> CommittedState:
        """Its state as a CommittedState; copies the vectors."""
        return CommittedState(self.shape, self.vectors, self.about.round)


def load(path: Path) -> Checkpoint:
    """Loads the checkpoint in the folder `path`.

    Raises LocalError, which says what is wrong, if it is damaged or incomplete, NoRoom if it does not fit in memory.
    """
    about = read_about(path)
    sizes = [facts.bytes for facts in about.files.values()]
    check_memory(sum(sizes) + max(sizes, default=0), f"opening the checkpoint {path}")  # one file is held twice
    for name, facts in about.files.items():
        if _hash(path / name) != facts.blake3:
            raise LocalError(
                f"{path / name} is damaged: its bytes are not those that were written", code="checkpoint-damaged"
            )
    manifest = about.decoded_manifest()
    layout = layout_of(manifest.model)
    shape, private = shape_of(manifest, layout), method_of(manifest, layout).keeps
    if missing := _expected(shape, about, private) - about.files.keys():
        raise LocalError(f"{path / ABOUT} does not name {', '.join(sorted(missing))}", code="checkpoint-damaged")
    vectors = {name: layout.pack(_tensors(path / file_of(name))) for name in shape.vectors}
    if read_back(shape, about.round, vectors).root.hex() != about.root:
        raise LocalError(f"{path} holds another state than the one that its round committed", code="checkpoint-damaged")
    moments = _moments(path, layout, about.inner_steps, private) if about.inner_steps else None
    return Checkpoint(path, about, manifest, shape, vectors, moments)


def load_newest(checkpoints: Path) -> Checkpoint | None:
    """Loads the newest intact checkpoint in one run's folder; damaged ones are skipped with a warning."""
    for found in newest_first(checkpoints):
        try:
            return load(found.path)
        except LocalError as error:
            if is_temporary(error):
                raise
            warn(log, "checkpoint-skipped", f"a checkpoint is passed over: {error}")
    return None


def _expected(shape: StateShape, about: About, private: Sequence[str]) -> set[str]:
    own = {INNER, PRIVATE} if private else {INNER}
    return {*map(file_of, shape.vectors), *(own if about.inner_steps else ())}


def _moments(path: Path, layout: Layout, steps: int, private: Sequence[str]) -> FloatArray:
    vector = torch.empty(moments_size(layout.size, len(private)))
    vector[0] = steps
    _unpack(path / INNER, layout, halves(vector, layout.size))
    if private:
        _unpack(path / PRIVATE, layout, private_views(vector, layout.size, private))
    array: FloatArray = vector.numpy()
    return array


def _unpack(path: Path, layout: Layout, vectors: Mapping[str, Tensor]) -> None:
    tensors = _tensors(path)
    for key, vector in vectors.items():
        prefix = f"{key}."
        layout.pack({name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}, vector)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path} is not a safetensors file: {error}", code="checkpoint-damaged") from error


def _hash(path: Path) -> str:
    try:
        return str(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}", code="unreadable") from error

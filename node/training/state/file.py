"""The committed state as a safetensors file, with the parameters under their Hugging Face names.

The other vectors have the same names with prefixes; round and root are JSON in the header. The bytes depend only on the
state, so peers that agree write equal files. A crash leaves the old file or the new one: the file is written under
another name, forced to disk, and renamed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.node.base.atomic import force
from shoal.node.ipc.shm import FloatArray
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.shape import FORMAT, StateShape
from shoal.protocol.base.errors import LocalError

PREFIX = "outer."  # as in "outer.momentum.model.norm.weight"; with a dot before it if a tensor's name begins like this
METADATA = "shoal"  # the only key, as the library would choose the order of several


def save_state(snapshot: Snapshot, path: Path) -> None:
    """Writes `snapshot`, which must be current or leased, to `path`; LocalError if that fails."""
    layout = snapshot.shape.layout
    tensors = layout.views(snapshot.vectors[PARAMETERS])
    for vector in snapshot.shape.vectors:
        if vector != PARAMETERS:
            views = layout.views(snapshot.vectors[vector])
            tensors |= {f"{_prefix(layout)}{vector}.{name}": tensor for name, tensor in views.items()}
    about = {"format": FORMAT, "root": snapshot.root.hex(), "round": snapshot.round}
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        save_file(tensors, fresh, {METADATA: json.dumps(about, sort_keys=True)})
        force(fresh)
        fresh.replace(path)
        force(path.parent)
    except (OSError, SafetensorError) as error:
        raise LocalError(f"cannot write {path}: {error}", code="unwritable") from error
    finally:
        fresh.unlink(missing_ok=True)


def save_weights(shape: StateShape, weights: FloatArray, round: int, path: Path) -> Snapshot:
    """Writes the state after `round` with these weights, (d,), and all other vectors 0; returns it."""
    made = CommittedState.of_weights(shape, torch.from_numpy(weights), round).current
    save_state(made, path)
    return made


def load_state(path: Path, shape: StateShape) -> CommittedState:
    """The state in `path`; LocalError if the file is damaged or of another model."""
    layout = shape.layout
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[METADATA])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        round, root = int(about["round"]), bytes.fromhex(about["root"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise LocalError(f"{path} is not a state file: {error}", code="checkpoint-damaged") from error
    vectors = {vector: layout.pack(_taken(tensors, f"{_prefix(layout)}{vector}.")) for vector in shape.vectors[1:]}
    state = CommittedState(shape, {PARAMETERS: layout.pack(tensors), **vectors}, round)
    if state.current.root != root:
        raise LocalError(f"{path} is damaged: its numbers are not those that were saved", code="checkpoint-damaged")
    return state


def _prefix(layout: Layout) -> str:
    return f".{PREFIX}" if any(place.name.startswith(PREFIX) for place in layout) else PREFIX


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Removes the tensors whose names begin with `prefix`, and returns them without it."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}

"""Writing a checkpoint so that a crash at any instant leaves a whole one or none.

Everything goes to a folder whose name begins with a dot. Each file is forced to disk, then that folder's names, then it
is renamed, then the names of the folder around it. The tensors are written from where they lie, without another copy,
and hashed on the way. All of it may run in a thread: the work is in calls that release the interpreter's lock.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.checkpoint.about import ABOUT, INNER, PRIVATE, About, FileFacts, file_of
from shoal.node.checkpoint.aside import set_aside
from shoal.node.checkpoint.scan import folder_name, glance
from shoal.node.disk import force
from shoal.node.methods.registry import method_of
from shoal.node.state.committed import Snapshot
from shoal.node.state.layout import Layout
from shoal.node.trainer.inner_state import halves, private_views
from shoal.node.worker.shm import FloatArray
from shoal.protocol.errors import LocalError

ALIGNMENT = 8  # bytes: the tensors begin at a multiple of it, as safetensors recommends


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


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileFacts:
    """A safetensors file of fp32 tensors on the CPU, on disk when this returns."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    pieces: list[bytes | memoryview] = [len(text).to_bytes(8, "little") + text, *map(_bytes_of, tensors.values())]
    hasher = blake3()
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            hasher.update(piece)
            _write_all(file.fileno(), piece)
        os.fsync(file.fileno())
        return FileFacts(bytes=file.tell(), blake3=hasher.hexdigest())


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


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's bytes where they lie."""
    if not tensor.numel():
        return memoryview(b"")
    return tensor.detach().reshape(-1).numpy().data.cast("B")


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    """All of `data`: one call writes at most 2 GiB, and on a full disk less."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

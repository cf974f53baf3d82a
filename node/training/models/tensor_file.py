"""Writing named fp32 tensors to a safetensors file without copying them.

The bytes are hashed on the way, and the file is forced to disk. The work is in calls that release the interpreter's
lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.manifest.base import FileFacts

ALIGNMENT = 8  # bytes: the tensors begin at a multiple of it, as safetensors recommends


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileFacts:
    """Writes contiguous fp32 tensors on the CPU to a safetensors file, which is on disk when this returns."""
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


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's bytes, not a copy."""
    if not tensor.numel():
        return memoryview(b"")
    return tensor.detach().reshape(-1).numpy().data.cast("B")


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of `data`; one system call writes at most 2 GiB, and less on a full disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]

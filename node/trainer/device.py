"""The device that a worker trains on: which one, its name for people, how much of its memory we hold, how it is fed.

How exact a step is, is each node's own affair: members agree on the mean of what came out, and apply it on the CPU.
"""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor

from shoal.protocol.errors import LocalError

PINNED: list[Tensor] = []  # kept: memory that is given back while it is pinned breaks whatever lies there next


def choose_device(wanted: str) -> str:
    """`wanted`, or for "auto" the fastest kind of device that torch finds; LocalError if it is not there."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return "cuda" if gpus else "mps" if mps else "cpu"
    kind, _, index = wanted.partition(":")
    if kind == "cuda" and int(index or 0) >= gpus:
        found = f"{gpus} NVIDIA GPUs, cuda:0 to cuda:{gpus - 1}" if gpus else "no NVIDIA GPU"
        raise LocalError(f"{wanted} is not here: torch finds {found}; use --device cpu or auto")
    if kind == "mps" and not mps:
        raise LocalError("mps is not here: torch finds no Apple GPU; use --device cpu or auto")
    return wanted


def device_name(device: torch.device) -> str:
    """ "cpu", "mps", or a GPU with its model: "cuda:0 (NVIDIA H200)"."""
    if device.type != "cuda":
        return device.type
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda:{index} ({torch.cuda.get_device_name(index)})"


def device_bytes(device: torch.device) -> int:
    """Memory of the device that this process has taken; 0 where that is the main memory."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    return int(torch.mps.driver_allocated_memory()) if device.type == "mps" else 0


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """Products of matrices in bf16 where a GPU has units for them, as anybody trains; weights and sums stay fp32."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)  # each weight is used once
    return nullcontext()


def pin(vector: Tensor, device: torch.device) -> None:
    """Let a GPU copy to and from `vector` directly, from now until the process ends: five times faster.

    Where that cannot be had, nothing happens; nor if `vector` is no mapping of its own, as shared vectors are: whole
    pages are pinned, and what else lies in them would be with it.
    """
    if device.type != "cuda" or vector.data_ptr() % mmap.PAGESIZE:
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(vector.data_ptr(), vector.nbytes, 0)) == 0:  # an enum that is true also for success
        PINNED.append(vector)
        return
    with suppress(RuntimeError):
        torch.zeros(1, device=device)  # torch would take the refusal for one of its next operation

"""The device that a worker trains on: which one, its name for people, its memory, how it is fed, how fast it may be.

How exact a step is, is each node's own affair: members agree on the mean of what came out, and apply it on the CPU.

How many floating-point operations it makes a second, in the precision that steps are made in, is as its maker says for
GPUs that are known: bf16 on tensor cores with fp32 sums, dense, from NVIDIA's data sheets and architecture whitepapers,
which often print twice that, for sparse matrices. All others, slices of GPUs among them, are measured by one product of
matrices, which is somewhat less than they could.
"""

from __future__ import annotations

import mmap
import time
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor

from shoal.protocol.base.errors import LocalError

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


TERA = 1e12
KNOWN = {  # by the whole name that CUDA gives them: a laptop's GPU, or a slice of one, is another
    "NVIDIA B200": 2250 * TERA,
    "NVIDIA H200": 989 * TERA,
    "NVIDIA H200 NVL": 835 * TERA,
    "NVIDIA H100 80GB HBM3": 989 * TERA,
    "NVIDIA H100 NVL": 835 * TERA,
    "NVIDIA H100 PCIe": 756 * TERA,
    "NVIDIA A100-SXM4-40GB": 312 * TERA,
    "NVIDIA A100-SXM4-80GB": 312 * TERA,
    "NVIDIA A100-PCIE-40GB": 312 * TERA,
    "NVIDIA A100 80GB PCIe": 312 * TERA,
    "NVIDIA L40S": 362 * TERA,
    "NVIDIA L4": 121 * TERA,
    "NVIDIA GeForce RTX 4090": 165.2 * TERA,
    "NVIDIA GeForce RTX 3090": 71 * TERA,
}
SIDES = {"cpu": 512, "mps": 2048, "cuda": 4096}  # of the matrices: large enough for full speed, done in milliseconds
MEASURING = 0.15  # seconds


def peak_flops(device: torch.device) -> float | None:
    """What it can do; None where that cannot be found out, as without the memory to try."""
    if device.type == "cuda" and (known := KNOWN.get(torch.cuda.get_device_name(device))):
        return known
    try:
        return _measured(device, SIDES.get(device.type, SIDES["cpu"]))
    except RuntimeError:
        return None


def _measured(device: torch.device, side: int) -> float:
    """The best of as many products of two (side, side) matrices as are done in time, at least one."""
    one, other = (torch.ones(side, side, device=device) for _ in range(2))
    with torch.no_grad(), mixed_precision(device):
        _seconds(one, other)  # loads libraries
        until, times = time.perf_counter() + MEASURING, [_seconds(one, other)]
        while time.perf_counter() < until:
            times.append(_seconds(one, other))
    return 2 * side**3 / min(times)


def _seconds(one: torch.Tensor, other: torch.Tensor) -> float:
    start = time.perf_counter()
    product = one @ other
    product[0, 0].item()  # waits for it
    return time.perf_counter() - start

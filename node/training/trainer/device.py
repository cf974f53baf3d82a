"""The device that a worker trains on: choosing it, its name for people, its memory, precision and peak speed.

The precision of a step is up to each node: members agree on the mean of the results, and apply it on the CPU.

The peak speed is in floating-point operations per second, in the precision of training steps. For known GPUs it is the
maker's number: bf16 on tensor cores with fp32 sums, for dense matrices, from NVIDIA's data sheets and architecture
whitepapers, which often print twice that, for sparse matrices. Other devices, and slices of GPUs, are measured by
matrix products, which reach somewhat less than the peak.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch import Tensor

from shoal.protocol.base.errors import LocalError

PINNED: list[Tensor] = []  # kept for ever: memory must not be freed and used again while it is pinned


def choose_device(wanted: str) -> str:
    """`wanted`, or for "auto" the fastest kind of device that torch finds; LocalError if it is not there."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return "cuda" if gpus else "mps" if mps else "cpu"
    kind, _, index = wanted.partition(":")
    if kind == "cuda" and int(index or 0) >= gpus:
        found = f"{gpus} NVIDIA GPUs, cuda:0 to cuda:{gpus - 1}" if gpus else "no NVIDIA GPU"
        raise LocalError(f"{wanted} is not here: torch finds {found}; use --device cpu or auto", code="device-missing")
    if kind == "mps" and not mps:
        raise LocalError("mps is not here: torch finds no Apple GPU; use --device cpu or auto", code="device-missing")
    return wanted


def device_name(device: torch.device) -> str:
    """The device's name for people: "cpu", "mps", or a GPU with its model, such as "cuda:0 (NVIDIA H200)"."""
    if device.type != "cuda":
        return device.type
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda:{index} ({torch.cuda.get_device_name(index)})"


def device_bytes(device: torch.device) -> int:
    """Bytes of the device's own memory that this process has allocated; 0 for a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    return int(torch.mps.driver_allocated_memory()) if device.type == "mps" else 0


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bf16 where a GPU supports it, as is usual in training; weights and sums stay fp32."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)  # each weight is used once
    return nullcontext()


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Afterwards torch's random numbers, of the CPU and of this device, go on as if nothing had happened."""
    kind = device.type
    if kind == "mps":  # which has one generator, and none for each of several devices
        kept = torch.mps.get_rng_state()
        try:
            with torch.random.fork_rng(devices=()):
                yield
        finally:
            torch.mps.set_rng_state(kept)
        return
    has_numbers = kind != "cpu" and hasattr(getattr(torch, kind, None), "get_rng_state")
    with torch.random.fork_rng([device], device_type=kind) if has_numbers else torch.random.fork_rng(devices=()):
        yield


def pin(vector: Tensor, device: torch.device) -> None:
    """Pins `vector` until the process ends, so that a GPU copies to and from it directly: five times faster.

    Does nothing if that is impossible, or if `vector` does not begin at a page: whole pages are pinned, and other data
    in them would be, too. Shared vectors are mappings of their own.
    """
    if device.type != "cuda" or vector.data_ptr() % mmap.PAGESIZE:
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(vector.data_ptr(), vector.nbytes, 0)) == 0:  # its enum is truthy for success, too
        PINNED.append(vector)
        return
    with suppress(RuntimeError):
        torch.zeros(1, device=device)  # clears the error, which torch would blame on its next operation


TERA = 1e12
KNOWN = {  # by the full name that CUDA gives them, as GPUs of laptops and slices of GPUs have other names
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
SIDES = {"cpu": 512, "mps": 2048, "cuda": 4096}  # of the matrices: large enough for full speed, within milliseconds
MEASURING = 0.15  # seconds


def peak_flops(device: torch.device) -> float | None:
    """The device's peak speed in floating-point operations per second; None if it cannot be measured."""
    if device.type == "cuda" and (known := KNOWN.get(torch.cuda.get_device_name(device))):
        return known
    try:
        return _measured(device, SIDES.get(device.type, SIDES["cpu"]))
    except RuntimeError:
        return None


def _measured(device: torch.device, side: int) -> float:
    """The best speed among products of two (side, side) matrices, repeated for MEASURING seconds."""
    one, other = (torch.ones(side, side, device=device) for _ in range(2))
    with torch.no_grad(), mixed_precision(device):
        _seconds(one, other)  # the first product loads libraries
        until, times = time.perf_counter() + MEASURING, [_seconds(one, other)]
        while time.perf_counter() < until:
            times.append(_seconds(one, other))
    return 2 * side**3 / min(times)


def _seconds(one: torch.Tensor, other: torch.Tensor) -> float:
    start = time.perf_counter()
    product = one @ other
    product[0, 0].item()  # waits for it
    return time.perf_counter() - start

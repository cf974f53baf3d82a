"""What a device can compute at most, in floating-point operations a second, in the precision that steps are made in.

GPUs that are known count as their maker says: bf16 on tensor cores with fp32 sums, dense, from NVIDIA's data sheets and
architecture whitepapers, which often print twice that, for sparse matrices. All others, slices of GPUs among them, are
measured by one product of matrices, which is somewhat less than they could.
"""

from __future__ import annotations

import time

import torch

from shoal.node.trainer.device import mixed_precision

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

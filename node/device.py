"""The device that a worker trains on: which one, its name for people, and how much of its memory we hold."""

from __future__ import annotations

import torch


def choose_device(wanted: str) -> str:
    """`wanted`, or for "auto" the fastest kind of device that torch finds."""
    if wanted != "auto":
        return wanted
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


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

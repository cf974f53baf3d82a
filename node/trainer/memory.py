"""How what a failed step held of a device's memory is given back."""

from __future__ import annotations

import gc

import torch


def make_room(device: torch.device) -> None:
    """Give back what nothing refers to any more; first whatever is still at work with it is waited for."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.synchronize()
        torch.mps.empty_cache()

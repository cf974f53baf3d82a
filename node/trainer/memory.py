"""Memory that is not there: how torch says so on each kind of device, and how what a failed step held is given back."""

from __future__ import annotations

import gc

import torch

SENTENCES = (  # of RuntimeErrors: only some allocators of torch have a type of their own for it
    "out of memory",  # CUDA's libraries, MPS
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",  # torch's allocator on the CPU: on Linux and macOS
    "not enough memory",  # and elsewhere
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or what it was raised for or after, is a want of memory."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(each in str(error) for each in SENTENCES):
            return True
        error = error.__cause__ or error.__context__
    return False


def make_room(device: torch.device) -> None:
    """Give back what nothing refers to any more; first whatever is still at work with it is waited for."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.synchronize()
        torch.mps.empty_cache()

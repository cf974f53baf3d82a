"""How many cores a server computes with."""

from __future__ import annotations

import os

import torch


def use_threads(wanted: int) -> None:
    """`wanted` threads for the arithmetic on the CPU; 0: one for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(wanted or cores)

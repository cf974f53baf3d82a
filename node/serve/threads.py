"""How many threads torch computes with, and how many models side by side."""

from __future__ import annotations

import os

import torch

from shoal.node.options import default_threads


def use_threads(threads: int) -> None:
    """So many; 0: as many as a worker has."""
    torch.set_num_threads(threads or default_threads())


def side_by_side() -> int:
    """Models that this machine computes at once, with the threads that each takes."""
    return max(1, (os.cpu_count() or 1) // torch.get_num_threads())

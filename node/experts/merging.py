"""One model of several: parameters of experts put together, for the price of one at inference.

All experts must have grown from the same ancestor and have its shapes; what has not cannot be averaged, only ensembled.

- `average`: theta = sum_j w_j theta_j, w summing to 1: the merge of Branch-Train-Merge (arXiv 2208.03306), w being its
  prior; and the start of a new expert, which may branch from such a mean instead of from the seed.
- `pcb`: PCB-Merging (arXiv 2410.02396) with task vectors t_i = theta_i - theta_0, n of them. How much a parameter
  counts is its balance between what it is within its expert and how it agrees with the others' (Eq. 1 to 4 there):

      intra_i = exp(n N(|t_i|)^2)      inter_i = tanh(t_i sum_j t_j)      beta_i = intra_i inter_i

  N maps a row to [0, 1] by its least and greatest value. Of each row of beta the greatest part `keep` is kept and
  mapped to [0, 1] again: the weights s_i. Then theta = theta_0 + lambda sum_i s_i t_i / sum_i s_i, where any s is over
  0; elsewhere theta_0 stays.

Everything in fp32, on flat vectors of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KEEP, SCALE = 0.1, 1.0  # the authors' ratio; they search lambda between 0.8 and 1.3


def average(thetas: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean, (d,); weights need not sum to 1, and are equal where none are given."""
    weights = [1.0] * len(thetas) if weights is None else weights
    if len(thetas) != len(weights) or min(weights, default=0) < 0 or not sum(weights) > 0:
        raise ValueError(f"{len(thetas)} experts cannot have the weights {list(weights)}")
    total, whole = torch.zeros_like(thetas[0], dtype=torch.float32), sum(weights)
    for theta, weight in zip(thetas, weights, strict=True):
        total = total + theta * (weight / whole)
    return total


def pcb(base: Tensor, thetas: Sequence[Tensor], keep: float = KEEP, scale: float = SCALE) -> Tensor:
    """theta, (d,), from theta_0, (d,), and the experts' parameters, each (d,)."""
    if not 0 < keep <= 1:
        raise ValueError(f"the part of parameters that is kept is {keep}; it must be over 0 and at most 1")
    tasks = torch.stack([theta.float() - base for theta in thetas])
    weights = spread(clipped(balance(tasks), keep))
    total = weights.sum(0)
    merged = (tasks * weights).sum(0) / torch.where(total > 0, total, 1.0)
    return base + merged * scale


def balance(tasks: Tensor) -> Tensor:
    """beta, (n, d), of n task vectors (n, d)."""
    intra = torch.exp(len(tasks) * spread(tasks.abs()).square())
    inter = torch.tanh(tasks * tasks.sum(0))
    return intra * inter


def spread(rows: Tensor) -> Tensor:
    """Each row (n, d) mapped to [0, 1]; zeros where all values of a row are equal."""
    least, greatest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    width = greatest - least
    return torch.where(width > 0, (rows - least) / torch.where(width > 0, width, 1.0), 0.0)


def clipped(rows: Tensor, keep: float) -> Tensor:
    """Rows (n, d) with all below the greatest part `keep` raised to the least of it, so that `spread` makes it zero."""
    kept = max(1, round(rows.shape[1] * keep))
    below = rows.shape[1] - kept
    if below == 0:
        return rows
    floor = torch.kthvalue(rows, below, dim=1, keepdim=True).values
    return torch.maximum(rows, floor)

"""Merges the parameters of several experts into one model, which costs no more at inference than one expert.

All experts must have begun with the same parameters, and have the same shapes; others can only be ensembled.

- `average`: theta = sum_j w_j theta_j with w summing to 1. This is the merge of Branch-Train-Merge (arXiv 2208.03306),
  where w is the prior; a new expert may begin with such a mean instead of the seed.
- `pcb`: PCB-Merging (arXiv 2410.02396) with n task vectors t_i = theta_i - theta_0. A parameter's weight balances its
  importance within its expert against its agreement with the other experts (Eq. 1 to 4 there):

      intra_i = exp(n N(|t_i|)^2)      inter_i = tanh(t_i sum_j t_j)      beta_i = intra_i inter_i

  N maps a row to [0, 1] by its least and greatest value. The greatest fraction `keep` of each row of beta is kept and
  mapped to [0, 1] again, which gives the weights s_i. Then theta = theta_0 + lambda sum_i s_i t_i / sum_i s_i where
  any s_i is above 0, and theta_0 elsewhere.

Everything in fp32, on flat vectors of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KEEP, SCALE = 0.1, 1.0  # the authors' ratio; they search lambda between 0.8 and 1.3


def average(thetas: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean, (d,); the weights need not sum to 1, and are equal by default."""
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
    """Rows (n, d) with all but the greatest fraction `keep` raised to its least value, so that `spread` zeroes them."""
    kept = max(1, round(rows.shape[1] * keep))
    below = rows.shape[1] - kept
    if below == 0:
        return rows
    floor = torch.kthvalue(rows, below, dim=1, keepdim=True).values
    return torch.maximum(rows, floor)

"""The velocity of flow matching where the data are few and known: what a perfect network would say, in closed form.

Behind x_t lies the sample x_i with a probability that follows from noise being normal, x_t ~ N((1 - t) x_i, t^2):

    p(x_i | x_t) ~ exp(-|x_t - (1 - t) x_i|^2 / 2 t^2)        u(x_t) = sum_i p(x_i | x_t) (x_t - x_i) / t

as eps = (x_t - (1 - t) x_i) / t. So a router, and how far experts are from what they should say, can be measured.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exact_posterior(data: Tensor, x: Tensor, t: float) -> Tensor:
    """p(x_i | x_t), (B, n), of samples (n, d) behind points (B, d) at the time 0 < t <= 1."""
    away = x[:, None] - data[None] * (1 - t)
    return torch.softmax(-away.square().sum(-1) / (2 * t * t), dim=-1)


def exact_velocity(data: Tensor, x: Tensor, t: float) -> Tensor:
    """u, (B, d), at points (B, d)."""
    weights = exact_posterior(data, x, t)
    return (x - weights @ data) / t


def exact_shares(data: Tensor, labels: Tensor, clusters: int, x: Tensor, t: float) -> Tensor:
    """p(S_k | x_t), (B, K), of clusters by the samples' labels (n,)."""
    weights = exact_posterior(data, x, t)
    return torch.zeros(len(x), clusters, dtype=x.dtype).index_add_(1, labels, weights)


def mixed(shares: Tensor, velocities: Tensor) -> Tensor:
    """u, (B, d), from shares (B, K) and the experts' velocities (B, K, d)."""
    return (shares[..., None] * velocities).sum(-2)

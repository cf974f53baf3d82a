"""Flow matching (arXiv 2210.02747): a velocity that carries noise to data along straight lines.

Between a sample x_0 and noise eps lies x_t = (1 - t) x_0 + t eps, t from 0 to 1, which moves by u = eps - x_0. A
network that is trained to tell u from (x_t, t) by squared error tells its mean over all x_0 that may lie behind x_t,
and so the velocity of the whole: sampling begins with noise at t = 1 and follows -u down to 0.

Experts on clusters S_k of the data (Decentralized Diffusion Models, arXiv 2501.05450) lose nothing by being apart: with
the posterior of the clusters, which a router is trained to tell,

    u(x_t) = sum_k p(S_k | x_t) u_k(x_t)        p(S_k | x_t) ~ |S_k| p_t(x_t | S_k)

is the same velocity, if experts and router are perfect and all are mixed. `mixed` is that sum; `kept` gives it to the
most probable k only, which costs less and, with experts that are not perfect, may be better.
"""

from __future__ import annotations

import torch
from torch import Tensor


def between(x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """x_t, (B, d), of samples and noise, both (B, d), at the times t, (B,)."""
    part = t[:, None]
    return x0 * (1 - part) + noise * part


def velocity(x0: Tensor, noise: Tensor) -> Tensor:
    """u, (B, d): what a network is to tell of `between`."""
    return noise - x0


def kept(shares: Tensor, k: int) -> Tensor:
    """The k greatest of each row's shares (B, K), summing to 1, and 0 for the others."""
    experts = shares.shape[-1]
    if not 1 <= k <= experts:
        raise ValueError(f"top {k} of {experts} experts")
    top = shares.topk(k, dim=-1)
    alone = torch.zeros_like(shares).scatter(-1, top.indices, top.values)
    return alone / alone.sum(-1, keepdim=True)


def mixed(shares: Tensor, velocities: Tensor) -> Tensor:
    """u, (B, d), from shares (B, K) and the experts' velocities (B, K, d)."""
    return (shares[..., None] * velocities).sum(-2)

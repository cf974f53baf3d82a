"""Flow matching (arXiv 2210.02747): a velocity field that carries noise to data along straight lines, and its sampler.

Between a sample x_0 and noise eps lies x_t = (1 - t) x_0 + t eps, t from 0 to 1, which moves at velocity u = eps - x_0.
A network that is trained to predict u from (x_t, t) by squared error learns its mean over all x_0 that may lie behind
x_t, which is the velocity of the whole distribution.

Experts on clusters S_k of the data (Decentralized Diffusion Models, arXiv 2501.05450) lose nothing by being apart: with
the posterior of the clusters, which a router is trained to predict,

    u(x_t) = sum_k p(S_k | x_t) u_k(x_t)        p(S_k | x_t) ~ |S_k| p_t(x_t | S_k)

is the same velocity, if experts and router are perfect and all experts are mixed. `top_shares` restricts the sum to the
k most probable experts, which costs less and, with imperfect experts, may be better.

Sampling integrates dx/dt = u(x, t) from noise at t = 1 to 0 by Heun's method, which evaluates the field at both ends of
each step and is of second order. The last step is Euler's, as no network is trained at exactly t = 0. Few steps
suffice, as the paths are nearly straight.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Field = Callable[[Tensor, Tensor], Tensor]
"""The velocity u, (B, d), at points (B, d) and times (B,)."""


def between(x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """x_t, (B, d), of samples and noise, both (B, d), at the times t, (B,)."""
    part = t[:, None]
    return x0 * (1 - part) + noise * part


def velocity(x0: Tensor, noise: Tensor) -> Tensor:
    """u, (B, d): the target of a network for the input `between`."""
    return noise - x0


def top_shares(shares: Tensor, k: int) -> Tensor:
    """The k largest of each row's shares (B, K), normalised to sum to 1, and 0 for the others."""
    experts = shares.shape[-1]
    if not 1 <= k <= experts:
        raise ValueError(f"top {k} of {experts} experts")
    top = shares.topk(k, dim=-1)
    alone = torch.zeros_like(shares).scatter(-1, top.indices, top.values)
    return alone / alone.sum(-1, keepdim=True)


def sample(velocity: Field, noise: Tensor, steps: int) -> Tensor:
    """The samples (B, d) that follow from the noise (B, d), by 2 `steps` - 1 evaluations of the velocity."""
    x = noise
    for here, there in spans(steps):
        x = step(velocity, x, here, there)
    return x


def spans(steps: int) -> list[tuple[float, float]]:
    """The times at which each step begins and ends; ValueError without a step."""
    if steps < 1:
        raise ValueError(f"{steps} steps lead nowhere")
    return list(pairwise(torch.linspace(1, 0, steps + 1).tolist()))


def step(velocity: Field, x: Tensor, here: float, there: float) -> Tensor:
    """One step of the sampler: x (B, d) at time `there`, from x at time `here`."""
    ahead = velocity(x, x.new_full((len(x),), here))
    moved = x + ahead * (there - here)
    if there > 0:
        behind = velocity(moved, x.new_full((len(x),), there))
        moved = x + (ahead + behind) * ((there - here) / 2)
    return moved

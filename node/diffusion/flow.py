"""Flow matching (arXiv 2210.02747): a velocity that carries noise to data along straight lines, and how it is followed.

Between a sample x_0 and noise eps lies x_t = (1 - t) x_0 + t eps, t from 0 to 1, which moves by u = eps - x_0. A
network that is trained to tell u from (x_t, t) by squared error tells its mean over all x_0 that may lie behind x_t,
and so the velocity of the whole.

Experts on clusters S_k of the data (Decentralized Diffusion Models, arXiv 2501.05450) lose nothing by being apart: with
the posterior of the clusters, which a router is trained to tell,

    u(x_t) = sum_k p(S_k | x_t) u_k(x_t)        p(S_k | x_t) ~ |S_k| p_t(x_t | S_k)

is the same velocity, if experts and router are perfect and all are mixed. `kept` gives the sum to the most probable k
only, which costs less and, with experts that are not perfect, may be better.

Sampling follows dx/dt = u(x, t) from noise at t = 1 to 0, by Heun's method, which looks at both ends of each step and
is of second order; its last step is Euler's, as no network is trained at t = 0 exactly. Few steps suffice, as the paths
are nearly straight.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Field = Callable[[Tensor, Tensor], Tensor]
"""u, (B, d), at points (B, d) and times (B,)."""


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


def sample(velocity: Field, noise: Tensor, steps: int) -> Tensor:
    """What the noise (B, d) is carried to, in 2 `steps` - 1 looks at the velocity."""
    x = noise
    for here, there in spans(steps):
        x = step(velocity, x, here, there)
    return x


def spans(steps: int) -> list[tuple[float, float]]:
    """The times at which each step begins and ends."""
    if steps < 1:
        raise ValueError(f"{steps} steps lead nowhere")
    return list(pairwise(torch.linspace(1, 0, steps + 1).tolist()))


def step(velocity: Field, x: Tensor, here: float, there: float) -> Tensor:
    """From x (B, d) at one time to what it is at the next."""
    ahead = velocity(x, x.new_full((len(x),), here))
    moved = x + ahead * (there - here)
    if there > 0:
        behind = velocity(moved, x.new_full((len(x),), there))
        moved = x + (ahead + behind) * ((there - here) / 2)
    return moved

"""From noise to pictures: the ordinary differential equation dx/dt = u(x, t), followed from t = 1 to 0.

Heun's method, which looks at both ends of each step and is of second order; its last step is Euler's, as no network is
trained at t = 0 exactly. Few steps suffice, as the paths are nearly straight.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""u, (B, d), at points (B, d) and times (B,)."""


def sample(velocity: Velocity, noise: Tensor, steps: int) -> Tensor:
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


def step(velocity: Velocity, x: Tensor, here: float, there: float) -> Tensor:
    """From x (B, d) at one time to what it is at the next."""
    ahead = velocity(x, x.new_full((len(x),), here))
    moved = x + ahead * (there - here)
    if there > 0:
        behind = velocity(moved, x.new_full((len(x),), there))
        moved = x + (ahead + behind) * ((there - here) / 2)
    return moved

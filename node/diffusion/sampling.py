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
    if steps < 1:
        raise ValueError(f"{steps} steps lead nowhere")
    times = torch.linspace(1, 0, steps + 1).tolist()
    x = noise
    for here, there in pairwise(times):
        ahead = velocity(x, torch.full((len(x),), here))
        moved = x + ahead * (there - here)
        if there > 0:
            behind = velocity(moved, torch.full((len(x),), there))
            moved = x + (ahead + behind) * ((there - here) / 2)
        x = moved
    return x

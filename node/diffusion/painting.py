"""Pictures of classes from a mixture: noise that follows from seeds, carried to pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.sampling import sample

STEPS = 8  # of Heun's method: 15 looks at the velocity
GUIDANCE = 1.5  # more makes clearer pictures, and fewer kinds of them


def noise(seeds: Sequence[tuple[int, int]], pixels: int) -> Tensor:
    """Of pictures by their seeds, each a request's seed and the picture's number in it: (n, pixels).

    A picture's noise is its own, whichever others are painted with it.
    """
    rows = []
    for seed, number in seeds:
        key = blake3(f"{seed} {number}".encode(), derive_key_context="shoal v1 picture noise").digest(length=8)
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        rows.append(torch.randn(pixels, generator=generator))
    return torch.stack(rows)


def paint(
    mixture: Mixture, classes: Sequence[int], start: Tensor, *, steps: int = STEPS, guidance: float = GUIDANCE
) -> Tensor:
    """Pictures (n, P) from -1 to 1 of the classes, from noise (n, P)."""
    wanted = torch.tensor(classes, device=start.device)
    return sample(mixture.guided(wanted, guidance), start, steps).clamp(-1, 1)

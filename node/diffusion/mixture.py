"""Experts that were trained apart, mixed to one velocity by the probabilities that a router gives them.

Classifier-free guidance (arXiv 2207.12598) leads the velocity away from that without a class: u = u_none +
g (u_class - u_none), where each of the two is mixed by its own shares. An expert is evaluated only for pictures in
which it has a share, so top-1 costs as much as one network, beside the router. The noise of a picture follows from its
seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.diffusion.flow import Field, sample, top_shares
from shoal.node.diffusion.network import Router, Velocity

STEPS = 8  # of Heun's method: 15 evaluations of the velocity
GUIDANCE = 1.5  # more makes pictures clearer, but less varied


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """`places` are the experts' columns in the router's output; the `top` most probable are mixed (None: all).

    A single expert needs no router.
    """

    experts: Sequence[Velocity]
    places: Sequence[int]
    router: Router | None
    top: int | None = None

    @property
    def none(self) -> int:
        """The class that stands for no class."""
        return self.experts[0].none

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return next(self.experts[0].parameters()).device

    @torch.inference_mode()
    def shares(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        """The share of each expert, (B, E), for noisy pictures (B, P) at times (B,), of classes (B,)."""
        if self.router is None:
            return torch.ones(len(x), 1, device=x.device)
        among = self.router(x, t, classes)[:, list(self.places)]
        shares = torch.softmax(among, dim=-1)
        return shares if self.top is None else top_shares(shares, min(self.top, len(self.experts)))

    @torch.inference_mode()
    def velocity(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        """The mixed velocity u, (B, P)."""
        shares, mixed = self.shares(x, t, classes), torch.zeros_like(x)
        for expert, share in zip(self.experts, shares.T, strict=True):
            needed = share > 0
            if bool(needed.any()):
                mixed[needed] += share[needed, None] * expert(x[needed], t[needed], classes[needed])
        return mixed

    def guided(self, classes: Tensor, guidance: float) -> Field:
        """The guided velocity field for pictures of the classes (B,)."""
        none = torch.full_like(classes, self.none)

        def field(x: Tensor, t: Tensor) -> Tensor:
            if guidance == 1:
                return self.velocity(x, t, classes)
            both = self.velocity(x.repeat(2, 1), t.repeat(2), torch.cat((classes, none)))
            conditional, unconditional = both.chunk(2)
            return unconditional + guidance * (conditional - unconditional)

        return field


def noise(seeds: Sequence[tuple[int, int]], pixels: int) -> Tensor:
    """The initial noise (n, pixels) of pictures by their seeds: each a request's seed and the picture's number in it.

    It does not depend on the other pictures in a batch.
    """
    rows = []
    for seed, number in seeds:
        key = blake3(f"{seed} {number}".encode(), derive_key_context="shoal v1 picture noise").digest(length=8)
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        rows.append(torch.randn(pixels, generator=generator))
    return torch.stack(rows)


def sample_pictures(
    mixture: Mixture, classes: Sequence[int], start: Tensor, *, steps: int = STEPS, guidance: float = GUIDANCE
) -> Tensor:
    """Pictures (n, P) from -1 to 1 of the classes, from noise (n, P)."""
    wanted = torch.tensor(classes, device=start.device)
    return sample(mixture.guided(wanted, guidance), start, steps).clamp(-1, 1)

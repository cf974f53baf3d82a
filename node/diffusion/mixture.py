"""Experts that were trained apart, as one velocity: a router says which of them know what lies behind a noisy picture.

Guided (arXiv 2207.12598), the velocity is led away from that of no class: u = u_none + g (u_class - u_none), each of
the two mixed by its own shares. An expert is asked only about pictures of which it has a share, so top-1 costs as much
as one network, beside the router. Pictures begin with noise that follows from their seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.diffusion.flow import Field, kept, sample
from shoal.node.diffusion.network import Router, Velocity

STEPS = 8  # of Heun's method: 15 looks at the velocity
GUIDANCE = 1.5  # more makes clearer pictures, and fewer kinds of them


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """`places` are the experts' columns of the router's answer; `top` of them are mixed, None for all.

    One expert alone needs no router.
    """

    experts: Sequence[Velocity]
    places: Sequence[int]
    router: Router | None
    top: int | None = None

    @property
    def none(self) -> int:
        """The class that stands for none."""
        return self.experts[0].none

    @property
    def device(self) -> torch.device:
        """On which it computes."""
        return next(self.experts[0].parameters()).device

    @torch.inference_mode()
    def shares(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        """How much each expert counts for, (B, E), of noisy pictures (B, P) at times (B,), of classes (B,)."""
        if self.router is None:
            return torch.ones(len(x), 1, device=x.device)
        among = self.router(x, t, classes)[:, list(self.places)]
        shares = torch.softmax(among, dim=-1)
        return shares if self.top is None else kept(shares, min(self.top, len(self.experts)))

    @torch.inference_mode()
    def velocity(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        """u, (B, P)."""
        shares, mixed = self.shares(x, t, classes), torch.zeros_like(x)
        for expert, share in zip(self.experts, shares.T, strict=True):
            asked = share > 0
            if bool(asked.any()):
                mixed[asked] += share[asked, None] * expert(x[asked], t[asked], classes[asked])
        return mixed

    def guided(self, classes: Tensor, guidance: float) -> Field:
        """The field that leads to pictures of the classes (B,)."""
        none = torch.full_like(classes, self.none)

        def field(x: Tensor, t: Tensor) -> Tensor:
            if guidance == 1:
                return self.velocity(x, t, classes)
            told = self.velocity(x.repeat(2, 1), t.repeat(2), torch.cat((classes, none)))
            led, free = told.chunk(2)
            return free + guidance * (led - free)

        return field


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

"""The pictures of one call, from noise on, step by step; whoever is gone is left out from the next step on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.painting import noise
from shoal.node.diffusion.sampling import spans, step


@dataclass(frozen=True, slots=True)
class Order:
    """What a request wants."""

    wanted: int  # the class
    count: int
    seed: int
    steps: int
    guidance: float


class Canvas:
    """For one thread."""

    def __init__(self, mixture: Mixture, orders: Sequence[Order], pixels: int) -> None:
        """The orders' steps and guidance must be the same; `pixels` is how many a picture has."""
        self._mixture, self._orders = mixture, list(orders)
        seeds = [(order.seed, number) for order in orders for number in range(order.count)]
        self._x = noise(seeds, pixels).to(mixture.device)
        self._ahead = deque(spans(orders[0].steps))

    @property
    def count(self) -> int:
        """Pictures that are on it."""
        return len(self._x)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return not self._ahead

    def keep(self, wanted: Sequence[bool]) -> None:
        """Go on with those of the orders that are still wanted, at least one, in their order."""
        if not all(wanted):
            rows = [each for order, kept in zip(self._orders, wanted, strict=True) for each in [kept] * order.count]
            self._x = self._x[torch.tensor(rows, device=self._x.device)]
            self._orders = list(compress(self._orders, wanted))

    def step(self) -> None:
        """The next one."""
        classes = [order.wanted for order in self._orders for _ in range(order.count)]
        field = self._mixture.guided(torch.tensor(classes, device=self._x.device), self._orders[0].guidance)
        self._x = step(field, self._x, *self._ahead.popleft())

    def pictures(self) -> tuple[Tensor, ...]:
        """(count, P) from -1 to 1 for each order that was kept, on the CPU."""
        sizes = [order.count for order in self._orders]
        parts: tuple[Tensor, ...] = torch.split(self._x.clamp(-1, 1).cpu(), sizes)
        return parts

"""Whether an optimizer takes back what came of a round, as one does that keeps weights which nobody has found.

Such a step goes straight back to where the weights were before they were replaced, and is much longer than the others.
It is looked for in the first steps after each of the first few times that weights are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOADS = 4  # that are looked at
STEPS = 12  # after each
SHARE = 0.3  # of the way back, which one step goes
STRAIGHT = 0.9  # the cosine between that step and the way
LONG = 4.0  # times the longest of the others
OTHERS = 3  # that are waited for
SAMPLE = 1 << 20  # numbers that are looked at, about: all would take the room of more models on their device


class TakenBack:
    """Of `weights`."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._every = 1 + sum(weight.numel() for weight in weights) // SAMPLE
        self._loads = self._steps = 0
        self._way: Tensor | None = None  # from where they were to where they were put
        self._last: Tensor | None = None  # after the step before
        self._back = 0.0  # the longest step that went back
        self._others: list[float] = []  # how long the others were

    @property
    def is_looking(self) -> bool:
        """Whether the next load is looked at."""
        return self._loads < LOADS

    def sample(self) -> Tensor:
        """Some of their numbers, as they are now."""
        return torch.cat([weight.detach().flatten()[:: self._every].cpu() for weight in self._weights]).double()

    def loaded(self, before: Tensor) -> None:
        """The weights were replaced; `before` is their sample from before."""
        self._last, self._steps = self.sample(), 0
        self._way = self._last - before
        if self._way.any():
            self._loads += 1
        else:
            self._way = None  # put where they were: that tells nothing

    def stepped(self) -> bool:
        """After a step: whether one of the last has taken the weights back."""
        if self._way is None or self._last is None:
            return False
        now = self.sample()
        step, self._last = now - self._last, now
        length, way = float(step.norm()), float(self._way.norm())
        back = -float(step @ self._way) / way
        if back > max(SHARE * way, STRAIGHT * length):
            self._back = max(self._back, length)
        else:
            self._others.append(length)
        self._steps += 1
        if self._steps == STEPS:
            self._way = self._last = None
        return len(self._others) >= OTHERS and self._back > LONG * max(self._others)

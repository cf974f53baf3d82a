"""Whether an optimizer takes back what came of a round, as one does that keeps weights which nobody has found.

Such a step goes straight back to where the weights were before they were replaced, and is much longer than the others.
It is looked for in the first steps after each of the first few times that weights are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

LOADS = 4  # that are looked at
STEPS = 12  # after each
SHARE = 0.3  # of the way back, which one step goes
STRAIGHT = 0.9  # the cosine between that step and the way
LONG = 4.0  # times the longest of the others
OTHERS = 3  # that are waited for


class TakenBack:
    """Of `weights`."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._loads = self._steps = 0
        self._way: list[Tensor] | None = None  # from where they were to where they were put
        self._last: list[Tensor] = []  # after the step before
        self._back = 0.0  # the longest step that went back
        self._others: list[float] = []  # how long the others were

    @property
    def is_looking(self) -> bool:
        """Whether the next load is looked at."""
        return self._loads < LOADS

    def loaded(self, before: Sequence[Tensor]) -> None:
        """The weights were replaced; they were `before`."""
        self._last = [weight.detach().clone() for weight in self._weights]
        self._way = [now.sub(old) for now, old in zip(self._last, before, strict=True)]
        if not any(bool(each.any()) for each in self._way):
            self._way = None  # put where they were: that tells nothing
        self._loads += self._way is not None
        self._steps = 0

    @torch.no_grad()
    def stepped(self) -> bool:
        """After a step: whether one of the last has taken the weights back."""
        if self._way is None:
            return False
        step = [weight.detach() - last for weight, last in zip(self._weights, self._last, strict=True)]
        length, way = (sqrt(sum(map(_dot, each, each))) for each in (step, self._way))
        back = -sum(map(_dot, step, self._way)) / way
        if back > max(SHARE * way, STRAIGHT * length):
            self._back = max(self._back, length)
        else:
            self._others.append(length)
        self._steps += 1
        if self._steps == STEPS:
            self._way, self._last = None, []
        else:
            self._last = [weight.detach().clone() for weight in self._weights]
        return len(self._others) >= OTHERS and self._back > LONG * max(self._others)


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other).sum())

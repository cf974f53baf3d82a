"""DiLoCo (arXiv 2311.08105).

Every member starts the round at the same theta, trains alone for H inner steps, and contributes how far its weights
have moved, as a "pseudo-gradient" that points uphill. The mean of these is the gradient of an outer Nesterov SGD step.

All members must get the same bits, so the outer step is computed on the CPU in fp32 by separate multiplications and
additions in the order below. `add(alpha=...)`, `addcmul` and torch.optim.SGD may fuse a product with a sum, which
rounds once instead of twice, depending on the processor. Everything is elementwise, so callers may cut blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.method import (
    MOMENTUM,
    NONE,
    PARAMETERS,
    Answer,
    Contribution,
    MethodDefaults,
    Vectors,
)


def pseudo_gradient(start: Tensor, end: Tensor, out: Tensor | None = None) -> Tensor:
    """Delta = start - end, (d,) in fp32 for weights of any type: half precision would lose most of it.

    The result is in the memory of `out`, if that is given and fp32; `out` may be `end`.
    """
    if out is not None and out.dtype == torch.float32:
        return torch.sub(start.float(), end.float(), out=out)
    return start.float() - end.float()


def outer_step(
    theta: Tensor, momentum: Tensor, delta: Tensor, *, lr: float, momentum_factor: float
) -> tuple[Tensor, Tensor]:
    """The next (theta, momentum), both (d,) in fp32; the arguments are not changed.

    This is Nesterov momentum as torch.optim.SGD defines it, which OpenDiLoCo uses:

        b <- mu b + Delta          theta <- theta - eta (Delta + mu b)

    The momentum b starts as zeros.
    """
    for each in (theta, momentum, delta):
        assert each.dtype == torch.float32
        assert each.device.type == "cpu"
    momentum = momentum * momentum_factor
    momentum = momentum + delta
    step = momentum * momentum_factor
    step = step + delta
    step = step * lr
    return theta - step, momentum


class DiLoCo(MethodDefaults):
    """The method: the whole vector is exchanged after each `inner_steps` steps, and all wait for the mean.

    After an aborted round all continue from where it began, and its training is lost. A joiner needs the state of the
    last round. A member that dies is not in the mean.
    """

    def __init__(self, inner_steps: int, lr: float, momentum: float) -> None:
        self.period, self._lr, self._momentum = inner_steps, lr, momentum

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Parameters and momentum are agreed."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, NONE

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The pseudo-gradient, (d,)."""
        return Contribution(pseudo_gradient(agreed[PARAMETERS], theta, out=theta), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The outer step."""
        theta, momentum = outer_step(
            agreed[PARAMETERS], agreed[MOMENTUM], answer.value, lr=self._lr, momentum_factor=self._momentum
        )
        return {PARAMETERS: theta, MOMENTUM: momentum}

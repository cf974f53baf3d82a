"""DiLoCo: what a member contributes to a round, and how it applies the answer (arXiv 2311.08105).

Every member starts the round at the same theta, trains alone for H inner steps, and contributes how far it
went, as a "pseudo-gradient" that points uphill. Their mean is the gradient of an outer Nesterov SGD step.

All members must come to the same bits, so the step is made on the CPU in fp32 by separate multiplications and
additions in the order below. `add(alpha=...)`, `addcmul` and torch.optim.SGD may fuse a product with a sum,
which rounds once instead of twice on processors that can. Everything is elementwise: callers may cut blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.method import (
    MOMENTUM,
    NONE,
    PARAMETERS,
    Answer,
    Contribution,
    Exchange,
    Merged,
    Vectors,
)


def pseudo_gradient(start: Tensor, end: Tensor, out: Tensor | None = None) -> Tensor:
    """Delta = start - end, (d,) in fp32 whatever the weights' type: half precision would lose most of it.

    In the memory of `out`, if it is given and is fp32; it may be `end`.
    """
    if out is not None and out.dtype == torch.float32:
        return torch.sub(start.float(), end.float(), out=out)
    return start.float() - end.float()


def outer_step(
    theta: Tensor, momentum: Tensor, delta: Tensor, *, lr: float, momentum_factor: float
) -> tuple[Tensor, Tensor]:
    """The next (theta, momentum), both (d,) in fp32; the arguments stay as they are.

    Nesterov momentum as torch.optim.SGD defines it, which is what OpenDiLoCo uses:

        b <- mu b + Delta          theta <- theta - eta (Delta + mu b)

    The momentum starts as zeros, so that b = Delta at first.
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


class DiLoCo:
    """The method: each `inner_steps` steps the whole vector, for whose mean all wait.

    A round that is aborted changes nothing: all go on from where it began, and what was trained is lost with it. Who
    joins needs the state of the last round; who dies is not in the mean.
    """

    exchange, wants_gradients, delay = Exchange.MEAN, False, 0
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    merges_weights = merges_answers = False

    def __init__(self, inner_steps: int, lr: float, momentum: float) -> None:
        self.period, self._lr, self._momentum = inner_steps, lr, momentum

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Parameters and momentum are agreed; nothing is private."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, NONE

    def join(self, agreed: Vectors) -> Vectors:
        """Nothing."""
        return NONE

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round."""
        return (0,) if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The pseudo-gradient, (d,)."""
        return Contribution(pseudo_gradient(agreed[PARAMETERS], theta, out=theta), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The outer step."""
        theta, momentum = outer_step(
            agreed[PARAMETERS], agreed[MOMENTUM], answer.value, lr=self._lr, momentum_factor=self._momentum
        )
        return {PARAMETERS: theta, MOMENTUM: momentum}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """All go on from the agreed parameters."""
        return Merged(agreed[PARAMETERS], private)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """All go on from where the round began."""
        return Merged(agreed[PARAMETERS], private)

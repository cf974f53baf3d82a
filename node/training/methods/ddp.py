"""Data-parallel training: each step uses the mean of all gradients, with AdamW on the agreed state (arXiv 1711.05101).

H is 1. g is the mean over all members of their gradients at the agreed theta; t counts the applied steps, from 1. The
first and second moments u and v start as zeros, and are part of the agreed state like theta:

    u <- beta1 u + (1 - beta1) g                v <- beta2 v + (1 - beta2) g g
    theta <- (1 - eta lambda) theta - eta / (1 - beta1^t) u / (sqrt(v) / sqrt(1 - beta2^t) + eps)

Except for rounding this is torch.optim.AdamW: decay is decoupled from the gradient, and moments are bias-corrected.
lambda is 0 for the norms' gains, as in inner optimizers (`decays` in node/training/models/layout.py).

All members must get the same bits. So vectors are fp32 on the CPU, computed by single operations in the order below.
Division is correctly rounded. torch's square root need not be: with MKL, one in seven is off by a bit. numpy uses the
processor's square root, which is correctly rounded (IEEE 754). Scalars are Python floats, computed by + - * / and sqrt
only; powers are multiplied out, as libraries differ in the last bit of pow(). Everything is elementwise, so callers may
cut blocks, if they say where each starts.

Clipping the mean by its norm would need a reduction that all members agree on. Instead each member clips its own
gradient (`clip_factor`); as a mean of vectors is no longer than the longest, the limit holds for the mean, too.

- Late: a gradient belongs to the theta at which it was computed; one that misses its step is dropped.
- Abort: nothing is applied and t stays; the same theta is used again, with the next batch.
- Join: with theta, both moments and t of the last step. A member that dies is not in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite, sqrt

import numpy as np
import torch
from torch import Tensor

from shoal.node.training.methods.method import NONE, PARAMETERS, Answer, Contribution, MethodDefaults, Vectors
from shoal.protocol.base.errors import LocalError

FIRST, SECOND = "first_moment", "second_moment"  # u and v


def adamw_step(
    theta: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    undecayed: Iterable[tuple[int, int]] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """The next (theta, first, second), all (d,) in fp32; the arguments are not changed. `step` counts from 1.

    `undecayed` are half-open ranges of numbers without weight decay.
    """
    for each in (theta, first, second, gradient):
        assert each.dtype == torch.float32
        assert each.device.type == "cpu"
    assert step >= 1
    beta1, beta2 = betas
    first = first * beta1
    first = first + gradient * (1 - beta1)
    second = second * beta2
    second = second + gradient * gradient * (1 - beta2)
    scale = root(second)
    scale = scale * (1 / sqrt(1 - power(beta2, step)))
    scale = scale + eps
    move = first / scale
    move = move * (lr / (1 - power(beta1, step)))
    decayed = theta * (1 - lr * weight_decay)
    for start, stop in undecayed:
        decayed[start:stop] = theta[start:stop]
    return decayed - move, first, second


def root(values: Tensor) -> Tensor:
    """The square roots of values >= 0, (d,) in fp32, correctly rounded, also of denormals."""
    return torch.from_numpy(np.sqrt(values.numpy()))


def power(base: float, exponent: int) -> float:
    """base^exponent for exponent >= 0, by repeated squaring: the same bits wherever floats are IEEE doubles."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result


def clip_factor(norm: float, limit: float) -> float:
    """The factor that scales a gradient with this norm down to the norm `limit`; 1 if it is not above it.

    To scale an agreed vector, all members would need the same norm to the bit. LocalError if the norm is not finite.
    """
    if not isfinite(norm):
        raise LocalError("the gradient holds NaN or Inf; training has diverged on this machine", code="diverged")
    return min(1.0, limit / norm) if norm > 0 else 1.0


class DDP(MethodDefaults):
    """The method: gradients are exchanged at each step, and all wait for the mean."""

    wants_gradients, period = True, 1

    def __init__(
        self,
        lr: Callable[[int], float],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        clip: float | None = None,
        undecayed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`lr` gives the learning rate of step t, from 1; `clip` is the largest norm of a contribution.

        `undecayed` are half-open ranges of numbers without weight decay, in order.
        """
        self._undecayed = undecayed
        self._lr, self._betas, self._eps, self._weight_decay, self._clip = lr, betas, eps, weight_decay, clip

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Parameters and moments are agreed."""
        return {PARAMETERS: theta, FIRST: torch.zeros_like(theta), SECOND: torch.zeros_like(theta)}, NONE

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The gradient, (d,), clipped."""
        gradient = theta.float()
        if self._clip is not None:
            norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))  # need not be the same elsewhere
            gradient *= clip_factor(norm, self._clip)
        return Contribution(gradient, private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """A step of AdamW."""
        theta, first, second = adamw_step(
            agreed[PARAMETERS],
            agreed[FIRST],
            agreed[SECOND],
            answer.value,
            step=answer.number,
            lr=self._lr(answer.number),
            betas=self._betas,
            eps=self._eps,
            weight_decay=self._weight_decay,
            undecayed=self._undecayed_of(answer),
        )
        return {PARAMETERS: theta, FIRST: first, SECOND: second}

    def _undecayed_of(self, block: Answer) -> Iterator[tuple[int, int]]:
        first, last = block.start, block.start + len(block.value)
        for start, stop in self._undecayed:
            if start < last and stop > first:
                yield max(start, first) - first, min(stop, last) - first

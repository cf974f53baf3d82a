"""Streaming DiLoCo: fragments are exchanged one after the other while training goes on (arXiv 2501.18512).

Fragment p of n (fragments.py) is sent after inner step t, from 1, if (t - t_p) mod H = 0; the offsets
t_p = floor(p H / n) are spread evenly. Its answer is applied tau steps later, 0 <= tau < H:

    Delta_p = theta~_p - theta_p(t)                      theta~_p: the result of the last outer step of p
    theta~_p <- OuterOpt(theta~_p, mean of Delta_p)      the outer step of diloco.py, with p's own momentum
    theta_p(t + tau) <- alpha theta_p(t + tau) + (1 - alpha) theta~_p

theta~ and the momenta are agreed; the mixed weights are the worker's own. With alpha = 0 it drops what it trained of p
while the answer was under way, with alpha = 1 it ignores the network. One fragment, tau = 0 and alpha = 0 are DiLoCo.

- Late: a worker that has made the tau steps before the answer has come waits for it.
- Aborted: theta~_p stays, and the worker trains on. Nothing is lost: the next Delta_p includes what was trained.
- Joining: a peer needs theta~, its momentum, and the answers that are under way; it starts at theta~. Its first Delta_p
  is what it has trained since, however little, and counts like any other.
- Dying: a dead member is missing from the means to which it did not contribute; its fragments under way still count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import outer_step, pseudo_gradient
from shoal.node.training.methods.fragments import Fragment, fragments
from shoal.node.training.methods.method import (
    MOMENTUM,
    NONE,
    PARAMETERS,
    Answer,
    Contribution,
    Merged,
    MethodDefaults,
    Vectors,
)
from shoal.node.training.models.layout import Layout


def offsets(count: int, inner_steps: int) -> tuple[int, ...]:
    """t_p of `count` fragments over H = `inner_steps`; ValueError if two fragments would be sent after one step."""
    if count > inner_steps:
        raise ValueError(f"{count} fragments need at least {count} inner steps between a fragment's exchanges")
    return tuple(part * inner_steps // count for part in range(count))


def mix(own: Tensor, outer: Tensor, alpha: float) -> Tensor:
    """alpha own + (1 - alpha) outer, (k,) each: the weights of a fragment to train on."""
    if alpha == 0:
        return outer  # the formula would give NaN if our own are infinite
    own = own * alpha
    return own + outer * (1 - alpha)


class Streaming(MethodDefaults):
    """The method: a part is the index of a fragment; payloads and answers hold only its numbers."""

    merges_weights = True

    def __init__(
        self,
        layout: Layout,
        strides: int,
        inner_steps: int,
        delay: int,
        alpha: float,
        lr: float,
        momentum: float,
    ) -> None:
        """`strides` is P of fragments.py, `inner_steps` H, `delay` tau. ValueError for settings that do not fit."""
        if not 0 <= delay < inner_steps:
            raise ValueError("a fragment's answer must be due before the fragment is sent again")
        if not 0 <= alpha <= 1:
            raise ValueError("alpha is a share: from 0, the network's weights, to 1, our own")
        self.fragments = fragments(layout, strides)
        self.delay = delay
        self.period = inner_steps
        self._launched = {offset: (part,) for part, offset in enumerate(offsets(len(self.fragments), inner_steps))}
        self._alpha, self._lr, self._momentum = alpha, lr, momentum

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Outer parameters and momentum are agreed."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, NONE

    def launches(self, step: int) -> tuple[int, ...]:
        """Each fragment, once in H steps."""
        return self._launched.get(step % self.period, ())

    def fragment(self, part: int) -> Fragment | None:
        """The fragment with this index."""
        return self.fragments[part]

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The fragment's pseudo-gradient, (k,)."""
        fragment = self.fragments[part]
        return Contribution(pseudo_gradient(fragment.take(agreed[PARAMETERS]), fragment.take(theta)), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The fragment's outer step."""
        theta, momentum = outer_step(
            agreed[PARAMETERS], agreed[MOMENTUM], answer.value, lr=self._lr, momentum_factor=self._momentum
        )
        return {PARAMETERS: theta, MOMENTUM: momentum}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The fragment's weights mixed, the others as they are."""
        fragment = self.fragments[part]
        mixed = mix(fragment.take(theta), fragment.take(agreed[PARAMETERS]), self._alpha)
        return Merged(fragment.put(theta, mixed), private)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The weights as they are."""
        return Merged(theta, private)

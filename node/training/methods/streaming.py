"""Streaming DiLoCo: one fragment after the other, while training goes on (Douillard et al., arXiv 2501.18512).

Fragment p of n (fragments.py) is sent after each inner step t, from 1, with (t - t_p) mod H = 0; the offsets
t_p = floor(p H / n) are spread evenly. Its answer is applied tau steps later, 0 <= tau < H:

    Delta_p = theta~_p - theta_p(t)                      theta~_p: what the last outer step of p gave
    theta~_p <- OuterOpt(theta~_p, mean of Delta_p)      the step of diloco.py, with a momentum of p's own
    theta_p(t + tau) <- alpha theta_p(t + tau) + (1 - alpha) theta~_p

theta~ and the momenta are agreed. The mixture is the worker's own: alpha = 0 drops what it trained on p while the
answer was under way, alpha = 1 ignores the network. One fragment, tau = 0 and alpha = 0 are DiLoCo.

- Late: who has made the tau steps before the answer is there waits for it.
- Aborted: theta~_p stays, and the worker trains on. Nothing is lost: the next Delta_p goes as far back as theta~_p.
- Joining: a peer needs theta~, its momentum, and the answers that are under way; it starts at theta~. Its first Delta_p
  is what it trained since, however little, and counts like any other.
- Dying: who dies is not in the means that it did not contribute to; its fragments under way still count.
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
    Exchange,
    Merged,
    Vectors,
)
from shoal.node.training.models.layout import Layout


def offsets(count: int, inner_steps: int) -> tuple[int, ...]:
    """t_p of `count` fragments over H = `inner_steps`; ValueError if two would have to be sent at once."""
    if count > inner_steps:
        raise ValueError(f"{count} fragments need at least {count} inner steps between a fragment's exchanges")
    return tuple(part * inner_steps // count for part in range(count))


def mix(own: Tensor, outer: Tensor, alpha: float) -> Tensor:
    """alpha own + (1 - alpha) outer, each (k,): the weights of a fragment to go on with."""
    if alpha == 0:
        return outer  # also where our own have become infinite
    own = own * alpha
    return own + outer * (1 - alpha)


class Streaming:
    """The method: a part is the number of a fragment, and payloads and answers are its numbers alone."""

    exchange, wants_gradients = Exchange.MEAN, False
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    merges_weights, merges_answers = True, False

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
        """`strides` is P of fragments.py, `inner_steps` H, `delay` tau. ValueError for what cannot be."""
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
        """Outer parameters and momentum are agreed; nothing is private."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, NONE

    def join(self, agreed: Vectors) -> Vectors:
        """Nothing."""
        return NONE

    def launches(self, step: int) -> tuple[int, ...]:
        """Each fragment once in any H steps."""
        return self._launched.get(step % self.period, ())

    def fragment(self, part: int) -> Fragment | None:
        """The numbers of its layers."""
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
        """The fragment mixed, the others as they are."""
        fragment = self.fragments[part]
        mixed = mix(fragment.take(theta), fragment.take(agreed[PARAMETERS]), self._alpha)
        return Merged(fragment.put(theta, mixed), private)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """Training goes on as it is."""
        return Merged(theta, private)

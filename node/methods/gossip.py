"""Gossip averaging: each mixes its weights with its neighbours' of a random graph, and all merge once in the end.

After H inner steps each peer i replaces its weights by a mean of its own and its neighbours', W being the graph's
doubly stochastic weights (`graphs`):

    theta_i <- w_ii theta_i + sum_j w_ij theta_j        w_ii = 1 - sum_j w_ij

So the mean over all peers stays as it is, and how far they are from it shrinks. Several steps of mixing in a row, with
W^Q in place of W, shrink it further (the multiple gossip steps of DFedSAM-MGS, arXiv 2302.04083). Few edges suffice
while training goes on, if all weights are merged by one global mean at its end: "A Single Merging Suffices" (arXiv
2507.06542). That merged model is the run's result; single replicas are worse than it.

Nothing is agreed, so nothing need have the same bits elsewhere: W is in Python floats, the mixing in plain fp32.

- Late: the graph was drawn for one round; what comes after it is dropped.
- A neighbour that is gone: its weight falls to ourselves, as `mix` takes what is missing to 1 from our own. That keeps
  the mean if no neighbour counts it either. If nobody is left, the round is a no-op and training goes on from theta.
- One-sided: where one has heard of a pair and the other has not, the mean over all moves by that one difference.
- Join: with the weights of any member, or the mean of some. Who dies takes its replica along; it is not in the merge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.node.methods.fragments import Fragment
from shoal.node.methods.method import NONE, PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors


def mix(own: Tensor, others: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean, (d,) in fp32, of our own weights and of our neighbours', with theirs; the rest is our own."""
    mixed = own * (1 - sum(weights))
    for other, weight in zip(others, weights, strict=True):
        mixed = mixed + other * weight
    return mixed


def mix_all(stack: Tensor, matrix: Sequence[Sequence[float]], steps: int = 1) -> Tensor:
    """What becomes of the weights of all, (M, d), in so many steps with the weights (M, M); W's rows sum to 1."""
    for _ in range(steps):
        stack = torch.stack([_row(stack, own, row) for own, row in enumerate(matrix)])
    return stack


def merge(stack: Tensor) -> Tensor:
    """The mean, (d,), of the weights of all, (M, d): the model that a run comes to."""
    total = stack[0]
    for each in stack[1:]:
        total = total + each
    return total / len(stack)


def _row(stack: Tensor, own: int, row: Sequence[float]) -> Tensor:
    others = [place for place, weight in enumerate(row) if weight and place != own]
    return mix(stack[own], [stack[place] for place in others], [row[place] for place in others])


class Gossip:
    """The method: each `inner_steps` steps all weights, with the neighbours of the round, for whom we wait.

    With several mixing steps the exchange is made as often in a row, each with a graph of its own.
    """

    exchange, wants_gradients, delay = Exchange.GRAPH, False, 0
    reads: tuple[str, ...] = (PARAMETERS,)
    keeps: tuple[str, ...] = (PARAMETERS,)
    merges_weights = merges_answers = True

    def __init__(self, inner_steps: int, mixing_steps: int = 1) -> None:
        self.period, self._mixing_steps = inner_steps, mixing_steps

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Nothing is agreed; the weights last mixed are private, for a peer that starts again."""
        return NONE, {PARAMETERS: theta}

    def join(self, agreed: Vectors) -> Vectors:
        """The copy."""
        return {PARAMETERS: agreed[PARAMETERS]}

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round, as often as is mixed."""
        return (0,) * self._mixing_steps if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The weights themselves, (d,)."""
        return Contribution(theta.float(), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """Nothing."""
        return agreed

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The mixed weights."""
        return Merged(answer.value, {PARAMETERS: answer.value})

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """It trains on, and exchanges the next time."""
        return Merged(theta, private)

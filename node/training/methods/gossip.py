"""Gossip averaging: peers average their weights with neighbours in a random graph, and all merge once at the end.

After H inner steps each peer i replaces its weights by a mean of its own and its neighbours', with the graph's doubly
stochastic weights W (node/lab/network.py):

    theta_i <- w_ii theta_i + sum_j w_ij theta_j        w_ii = 1 - sum_j w_ij

So the mean over all peers stays, and the distances to it shrink. Several mixing steps in a row, with W^Q in place of W,
shrink them further (the multiple gossip steps of DFedSAM-MGS, arXiv 2302.04083). Few edges suffice during training if
all weights are merged by one global mean at its end: "A Single Merging Suffices" (arXiv 2507.06542). That merged model
is the run's result; it is better than single replicas.

In a run each peer exchanges with one partner that is drawn for the round: a graph in which both weights are 1/2.

The weights after the last mixing are the replica. They are held like agreed vectors, but not agreed with anybody, so
other machines need not get the same bits: W is in Python floats, and mixing in plain fp32. With a `delay`, training
goes on for so many inner steps while the exchange is under way, and their result is added to the mixture (late.py).

- Late: a graph is drawn for one round; what comes after it is dropped. A peer that is early waits for the answer.
- If a neighbour is gone, its weight is added to our own in `mix`. That keeps the mean if the neighbour does not count
  us either. If all neighbours are gone, the round changes nothing, and training goes on from theta.
- One-sided: if only one of a pair has received the other's weights, the mean over all moves by that one difference.
- Join: with the weights of any member, or the mean of some. A member that dies takes its replica along, and is not in
  the merge. A worker that dies while its daemon lives loses what it has trained since the last mixing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shoal.node.training.methods.late import check_delay, launched, resumed
from shoal.node.training.methods.method import (
    PARAMETERS,
    Answer,
    Contribution,
    Exchange,
    Merged,
    MethodDefaults,
    Vectors,
)


def mix(own: Tensor, others: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The mean, (d,) in fp32, of the neighbours' weights, weighted by `weights`, and our own, with the rest to 1."""
    mixed = own * (1 - sum(weights))
    for other, weight in zip(others, weights, strict=True):
        mixed = mixed + other * weight
    return mixed


def merge(stack: Tensor) -> Tensor:
    """The mean, (d,), of the weights of all members, (M, d): the model that a run results in."""
    total = stack[0]
    for each in stack[1:]:
        total = total + each
    return total / len(stack)


class Gossip(MethodDefaults):
    """The method: all weights are exchanged with the round's neighbours after each `inner_steps` steps.

    `delay` is the number of inner steps until training waits for the answer. With several mixing steps there are as
    many exchanges in a row, each with a graph of its own.
    """

    exchange = Exchange.GRAPH
    merges_weights = True

    def __init__(self, inner_steps: int, mixing_steps: int = 1, delay: int = 0) -> None:
        """ValueError for a delay with which two exchanges could be under way at once."""
        check_delay(delay, inner_steps)
        if delay and mixing_steps > 1:
            raise ValueError("of several mixing steps each needs what the one before has left: delay must be 0")
        self.period, self.delay, self._mixing_steps = inner_steps, delay, mixing_steps

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The replica consists of the weights after the last mixing."""
        return {PARAMETERS: theta}, launched(theta, self.delay)

    def join(self, agreed: Vectors) -> Vectors:
        """The replica stands for the launched weights, as nothing was trained since."""
        return launched(agreed[PARAMETERS], self.delay)

    def launches(self, step: int) -> tuple[int, ...]:
        """One exchange for each mixing step."""
        return super().launches(step) * self._mixing_steps

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The weights themselves, (d,)."""
        return Contribution(theta.float(), launched(theta, self.delay))

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The mixture."""
        return {PARAMETERS: answer.value}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The mixed weights, with what was trained during the delay."""
        return resumed(theta, agreed, private, self.delay)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The weights as they are; the next exchange includes them."""
        return Merged(theta, private)

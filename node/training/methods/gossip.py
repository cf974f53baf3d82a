"""Gossip averaging: each mixes its weights with its neighbours' of a random graph, and all merge once in the end.

After H inner steps each peer i replaces its weights by a mean of its own and its neighbours', W being the graph's
doubly stochastic weights (lab/network.py):

    theta_i <- w_ii theta_i + sum_j w_ij theta_j        w_ii = 1 - sum_j w_ij

So the mean over all peers stays as it is, and how far they are from it shrinks. Several steps of mixing in a row, with
W^Q in place of W, shrink it further (the multiple gossip steps of DFedSAM-MGS, arXiv 2302.04083). Few edges suffice
while training goes on, if all weights are merged by one global mean at its end: "A Single Merging Suffices" (arXiv
2507.06542). That merged model is the run's result; single replicas are worse than it.

In a run each exchanges with one partner that is drawn for the round. That is a graph, too: both weights are 1/2.

The weights last mixed are the replica: held as agreed vectors are, but agreed with nobody, so nothing need have the
same bits elsewhere: W is in Python floats, the mixing in plain fp32. With a `delay` training goes on for so many inner
steps while the exchange is under way, and what was trained in them is put on top of the mixture (late.py).

- Late: the graph was drawn for one round; what comes after it is dropped. Who is there before the answer waits for it.
- A neighbour that is gone: its weight falls to ourselves, as `mix` takes what is missing to 1 from our own. That keeps
  the mean if no neighbour counts it either. If nobody is left, the round is a no-op and training goes on from theta.
- One-sided: where one has heard of a pair and the other has not, the mean over all moves by that one difference.
- Join: with the weights of any member, or the mean of some. Who dies takes its replica along; it is not in the merge.
  A worker that dies alone takes along what it has trained since the last mixture, and the next one begins with that.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.late import check_delay, launched, resumed
from shoal.node.training.methods.method import PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors


def mix(own: Tensor, others: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean, (d,) in fp32, of our own weights and of our neighbours', with theirs; the rest is our own."""
    mixed = own * (1 - sum(weights))
    for other, weight in zip(others, weights, strict=True):
        mixed = mixed + other * weight
    return mixed


def merge(stack: Tensor) -> Tensor:
    """The mean, (d,), of the weights of all, (M, d): the model that a run comes to."""
    total = stack[0]
    for each in stack[1:]:
        total = total + each
    return total / len(stack)


class Gossip:
    """The method: each `inner_steps` steps all weights, with the neighbours of the round.

    `delay` is how many inner steps are made before the answer is waited for. With several mixing steps the exchange is
    made as often in a row, each with a graph of its own.
    """

    exchange, wants_gradients = Exchange.GRAPH, False
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    merges_weights, merges_answers = True, False

    def __init__(self, inner_steps: int, mixing_steps: int = 1, delay: int = 0) -> None:
        """ValueError for a delay with which two exchanges would be under way."""
        check_delay(delay, inner_steps)
        if delay and mixing_steps > 1:
            raise ValueError("of several mixing steps each needs what the one before has left: delay must be 0")
        self.period, self.delay, self._mixing_steps = inner_steps, delay, mixing_steps

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The replica is the weights last mixed."""
        return {PARAMETERS: theta}, launched(theta, self.delay)

    def join(self, agreed: Vectors) -> Vectors:
        """Nothing was trained since."""
        return launched(agreed[PARAMETERS], self.delay)

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round, as often as is mixed."""
        return (0,) * self._mixing_steps if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The weights themselves, (d,)."""
        return Contribution(theta.float(), launched(theta, self.delay))

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The mixture."""
        return {PARAMETERS: answer.value}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The mixed weights; training goes on from there."""
        return resumed(theta, agreed, private, self.delay)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """It trains on, and exchanges the next time."""
        return Merged(theta, private)

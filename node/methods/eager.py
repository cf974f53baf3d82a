"""Eager updates: DiLoCo that takes its own share of a mean at once, and the others' a round late (arXiv 2502.12996).

Worker i, of M, makes an outer step (diloco.py) after each round t by a gradient of its own:

    g_i^t = (1/M) Delta_i^t + (Delta^(t-1) - (1/M) Delta_i^(t-1))

Delta_i^t is how far it went in the round, Delta^(t-1) the mean of all in the round before. In round 0 both terms of the
round before are zero, which leaves (1/M) Delta_i^0; the paper's formula is read so. With M = 1 this is DiLoCo, from the
first round on. The mean of all g_i^t is Delta^(t-1) + (1/M) (Delta^t - Delta^(t-1)), with means on both sides.

Momentum and parameters differ from worker to worker: they are a *replica*, which is private. What all agree on is
DiLoCo with each mean a round late (delayed.py): by it a state is known, fenced, saved and given to joiners. A replica
differs from it only by shares that were taken in advance. Each is given back a round later, when the mean comes that
holds it, so replicas do not drift apart for good.

- Late: who ends round t before the mean of round t-1 is there waits for it.
- Aborted: the mean of an aborted round counts as zeros: the share that was taken of it is given back.
- Joining: a peer starts its replica as a copy of the agreed state, with nothing taken in advance, and needs the mean
  that is under way, as that is the first that it applies.
- Dying: who dies is not in the means that it did not contribute to. Its replica goes with it; nobody needs it, and it
  begins as one who joins if it is back: what it had taken in advance was the replica's alone.
- Weights: a mean may be weighted, by tokens in a run. The share taken is 1/M all the same; as it is given back when the
  mean comes, which holds the weighted one, the difference lasts a round.
- M is what the latest answer says, or how many take part where there is none. If it changes, what is given back is
  still what was taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.methods.delayed import DelayedDiLoCo
from shoal.node.methods.diloco import outer_step, pseudo_gradient
from shoal.node.methods.method import MOMENTUM, PARAMETERS, Answer, Contribution, Merged, Vectors

REPLICA = "replica"  # the parameters that our round began with
REPLICA_MOMENTUM = "replica_momentum"
TAKEN = "taken"  # our share of the mean that is under way: the step has it already


def eager_gradient(own: Tensor, members: int, late: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
    """(g, the share of `own` in it), both (d,) in fp32.

    `own` is Delta_i^t, `late` is Delta^(t-1), and `taken` is the share that the call of the round before returned; both
    are zeros in round 0. The share is `own` divided by `members`, M.
    """
    share = own / members
    rest = late - taken
    return share + rest, share


class EagerDiLoCo(DelayedDiLoCo):
    """The method. Agreed vectors are those of `DelayedDiLoCo`, and so are the times; the weights are the replica's."""

    reads = (PARAMETERS, MOMENTUM)
    merges_weights = merges_answers = True

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """All replicas begin equal."""
        agreed, _ = super().begin(theta)
        return agreed, self.join(agreed)

    def join(self, agreed: Vectors) -> Vectors:
        """A copy of the agreed state."""
        theta = agreed[PARAMETERS]
        return {REPLICA: theta, REPLICA_MOMENTUM: agreed[MOMENTUM], TAKEN: torch.zeros_like(theta)}

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The pseudo-gradient, (d,), from where the replica was."""
        return Contribution(pseudo_gradient(private[REPLICA], theta, out=theta), private)

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The replica's outer step, with the mean of the round before."""
        return self._step(theta, private, answer.value, answer.members)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The replica's outer step, as if the mean of the round before were zeros."""
        return self._step(theta, private, torch.zeros_like(private[TAKEN]), members)

    def _step(self, theta: Tensor, private: Vectors, late: Tensor, members: int) -> Merged:
        own = pseudo_gradient(private[REPLICA], theta)
        gradient, share = eager_gradient(own, members, late, private[TAKEN])
        theta, momentum = outer_step(
            private[REPLICA], private[REPLICA_MOMENTUM], gradient, lr=self._lr, momentum_factor=self._momentum
        )
        return Merged(theta, {REPLICA: theta, REPLICA_MOMENTUM: momentum, TAKEN: share})

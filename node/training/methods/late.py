"""Late answers: three methods that use each mean a round later, so that it is made while the next round is trained.

`DelayedDiLoCo` and `EagerDiLoCo` are from arXiv 2502.12996, `CO2` from Sun et al., ICLR 2024 (arXiv 2401.16265).
For round t from 0, with the outer step of diloco.py as OuterOpt:

    delayed   theta^(t+1) = OuterOpt(theta^t, Delta^(t-1))       Delta_i^t = theta^t - (where worker i ended round t)

    eager     g_i^t = (1/M) Delta_i^t + (Delta^(t-1) - (1/M) Delta_i^(t-1)), an outer step of worker i's own by g_i^t

    co2       g = theta^t - mean of the weights of round t-1     m <- sigma m + g / Lambda   m <- min(max(m, -phi), phi)
              theta^(t+1) = theta^t - eta m

Delta^(t-1) is the mean of all workers' Delta_i^(t-1). After round 0 there is no mean yet: the agreed state stays as it
is, and round 1 starts at theta^0 again, on other data. For all three:

- Late: a worker that ends round t before the mean of round t-1 has come waits for it. A mean is never used later.
- Aborted: the mean of an aborted round is never applied. The state stays when it would have been due, and the next
  round starts at the same state. (In the eager method the mean counts as zeros: the share taken of it is given back.)
- Joining: a peer needs the state and the mean that is under way, which it applies first. The mean of its first
  round is due a round later, as everybody's.
- Dying: a dead member is missing from the means to which it did not contribute; earlier contributions still count.
- End of the run: the mean of the last round is under way, and is in no state.

**Eager.** A worker takes its own share of a mean at once, and the others' a round late. In round 0 both terms of the
round before are zero, which leaves (1/M) Delta_i^0; that is how the paper's formula is read here. With M = 1 this is
DiLoCo from the first round on. The mean of all g_i^t is Delta^(t-1) + (1/M) (Delta^t - Delta^(t-1)).
Momentum and parameters differ from worker to worker: they are a private *replica*. The agreed state is that of the
delayed method: it is fenced, saved and given to joiners. A replica differs from it only by shares that were taken in
advance. Each share is given back a round later, when the mean that contains it comes, so replicas do not drift apart
for good. The replica of a joiner or of a restarted worker is a copy of the agreed state, with nothing taken in advance.
In a run the mean is weighted by tokens, but the share taken is 1/M; as it is given back when the weighted mean comes,
the difference lasts one round. M comes from the latest answer, or is the number of members if there is none. If it
changes, the share that was taken is given back unchanged.

**CO2.** Lambda >= 1 is the staleness penalty: 1, as in the authors' program, or for each element 1 + |change| /
typical, for the change of theta while the mean was under way, in units of a typical change (gap-aware, Barkai et al.,
arXiv 1909.10802; CO2's paper is not clear about the units, so they are an argument here). The authors' program clips a
copy, which has no effect; here m itself is clipped for the next round, too. All members must get the same bits:
separate operations in fp32 on the CPU, each rounded once, in the order above.

**Replicas** (noloco.py, gossip.py) may have a delay as well, shorter than a round. Their exchange is about the weights
at its launch. What was trained since is not in the answer, and is added to the new replica; it is a part of the next
contribution:

    theta <- replica + (theta - theta_launched)

With a delay of 0 nothing was trained since, and theta is the replica itself, to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import DiLoCo, outer_step, pseudo_gradient
from shoal.node.training.methods.method import MOMENTUM, NONE, PARAMETERS, Answer, Contribution, Merged, Vectors

LAUNCHED = "launched"  # private: the weights at the last launch, or at the start


def check_delay(delay: int, inner_steps: int) -> None:
    """ValueError unless an answer is due before the next exchange begins."""
    if not 0 <= delay < inner_steps:
        raise ValueError(f"delay is {delay}; with {inner_steps} inner steps it must be from 0 to {inner_steps - 1}")


def launched(theta: Tensor, delay: int) -> Vectors:
    """The private vectors of a replica that contributes `theta`, (d,), now: a copy, as training overwrites `theta`."""
    return {LAUNCHED: theta.float().clone()} if delay else NONE


def resumed(theta: Tensor, replica: Vectors, private: Vectors, delay: int) -> Merged:
    """The weights to train on, (d,), after an answer was applied to the replica."""
    if not delay:
        return Merged(replica[PARAMETERS], private)
    return Merged(replica[PARAMETERS] + (theta - private[LAUNCHED]), private)


class DelayedDiLoCo(DiLoCo):
    """The method: DiLoCo with answers that are due a round after their launch.

    Without an answer it does what DiLoCo does: all continue from the unchanged agreed parameters.
    """

    def __init__(self, inner_steps: int, lr: float, momentum: float) -> None:
        super().__init__(inner_steps, lr, momentum)
        self.delay = inner_steps


REPLICA = "replica"  # private: the parameters with which the worker's round began
REPLICA_MOMENTUM = "replica_momentum"
TAKEN = "taken"  # private: the own share of the mean under way, which was applied in advance


def eager_gradient(own: Tensor, members: int, late: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
    """g_i^t and the share of it that is taken in advance, both (d,) in fp32.

    `own` is Delta_i^t, `late` is Delta^(t-1), and `taken` is the share that was returned for the round before; the
    latter two are zeros in round 0. The share is `own` divided by `members`, M.
    """
    share = own / members
    rest = late - taken
    return share + rest, share


class EagerDiLoCo(DelayedDiLoCo):
    """The method: agreed vectors and times as in `DelayedDiLoCo`, but workers train the weights of their replicas."""

    reads = (PARAMETERS, MOMENTUM)
    merges_weights = merges_answers = True

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """All replicas begin as copies of the agreed state."""
        agreed, _ = super().begin(theta)
        return agreed, self.join(agreed)

    def join(self, agreed: Vectors) -> Vectors:
        """A replica that is a copy of the agreed state."""
        theta = agreed[PARAMETERS]
        return {REPLICA: theta, REPLICA_MOMENTUM: agreed[MOMENTUM], TAKEN: torch.zeros_like(theta)}

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The pseudo-gradient, (d,), from the replica's parameters."""
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


def staleness_penalty(change: Tensor, typical: float) -> Tensor:
    """Lambda = 1 + |change| / typical, (d,) in fp32; `change` is how far each weight moved meanwhile, typical > 0."""
    assert change.dtype == torch.float32
    if not typical > 0:
        raise ValueError("the typical change of a weight must be positive")
    return change.abs() / torch.full_like(change, typical) + 1.0  # a scalar might be replaced by its reciprocal


def co2_step(
    theta: Tensor,
    momentum: Tensor,
    stale: Tensor | None,
    *,
    lr: float,
    momentum_factor: float,
    clip: float,
    penalty: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The next (theta, momentum), (d,) each in fp32, by `stale`, the mean of the weights of the round before.

    Without `stale` both stay. `lr` is eta, `momentum_factor` sigma, `clip` phi (infinite: no clipping), `penalty`
    Lambda.
    """
    if stale is None:
        return theta, momentum
    for each in (theta, momentum, stale):
        assert each.dtype == torch.float32
        assert each.device.type == "cpu"
    gap = theta - stale
    gap = gap / penalty
    momentum = momentum * momentum_factor
    momentum = momentum + gap
    momentum = momentum.clamp(-clip, clip)
    step = momentum * lr
    return theta - step, momentum


class CO2(DelayedDiLoCo):
    """The method: as `DelayedDiLoCo`, but with another outer step, and the weights themselves are sent.

    While a mean was under way the agreed parameters moved by the step before, which is eta m; so the penalty needs no
    further vector. (After an aborted round they did not move, but the penalty is still that of the last step.)
    """

    def __init__(
        self, inner_steps: int, lr: float, momentum: float, clip: float, typical_change: float | None = None
    ) -> None:
        if not clip > 0:
            raise ValueError("the bound of the outer momentum must be positive")
        super().__init__(inner_steps, lr, momentum)
        self._clip, self._typical = clip, typical_change

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The weights, (d,) in fp32."""
        return Contribution(theta.float(), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The outer step."""
        theta, momentum = agreed[PARAMETERS], agreed[MOMENTUM]
        penalty = 1.0 if self._typical is None else staleness_penalty(momentum * self._lr, self._typical)
        theta, momentum = co2_step(
            theta,
            momentum,
            answer.value,
            lr=self._lr,
            momentum_factor=self._momentum,
            clip=self._clip,
            penalty=penalty,
        )
        return {PARAMETERS: theta, MOMENTUM: momentum}

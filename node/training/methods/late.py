"""Answers that come late: three methods that use each mean a round later, so that it travels while the next is trained.

`DelayedDiLoCo` and `EagerDiLoCo` are from arXiv 2502.12996, `CO2` from Sun et al., ICLR 2024 (arXiv 2401.16265).
With OuterOpt the step of diloco.py, for round t from 0:

    delayed   theta^(t+1) = OuterOpt(theta^t, Delta^(t-1))       Delta_i^t = theta^t - (where worker i ended round t)

    eager     g_i^t = (1/M) Delta_i^t + (Delta^(t-1) - (1/M) Delta_i^(t-1)), an outer step of worker i's own by g_i^t

    co2       g = theta^t - mean of the weights of round t-1     m <- sigma m + g / Lambda   m <- min(max(m, -phi), phi)
              theta^(t+1) = theta^t - eta m

Delta^(t-1) is the mean of all workers' Delta_i^(t-1). After round 0 there is no mean yet: the agreed state stays as it
is, and round 1 starts at theta^0 again, on other data. For all three:

- Late: who ends round t before the mean of round t-1 is there waits for it. It is never applied a round later still.
- Aborted: the mean of an aborted round is never applied. The round that ends when it was due changes nothing, and the
  round after it starts where that one did. (An eager one counts it as zeros: the share taken of it is given back.)
- Joining: a peer needs the state, and the mean that is under way: that is the first that it applies. What it trains in
  its first round is due a round later, as everybody's.
- Dying: who dies is not in the means that it did not contribute to; what it contributed before still counts.
- The end of a run: the mean of the last round is under way, and is in no state.

**Eager.** Each takes its own share of a mean at once, and the others' a round late. In round 0 both terms of the round
before are zero, which leaves (1/M) Delta_i^0; the paper's formula is read so. With M = 1 this is DiLoCo, from the first
round on. The mean of all g_i^t is Delta^(t-1) + (1/M) (Delta^t - Delta^(t-1)), with means on both sides. Momentum and
parameters differ from worker to worker: they are a *replica*, which is private. What all agree on is the delayed
method: by it a state is known, fenced, saved and given to joiners. A replica differs from it only by shares that were
taken in advance. Each is given back a round later, when the mean comes that holds it, so replicas do not drift apart
for good. A joiner's replica is a copy of the agreed state, with nothing taken in advance; so is that of a worker that
is back. A mean may be weighted, by tokens in a run. The share taken is 1/M all the same; as it is given back when the
mean comes, which holds the weighted one, the difference lasts a round. M is what the latest answer says, or how many
take part where there is none. If it changes, what is given back is still what was taken.

**CO2.** Lambda >= 1 is the staleness penalty: 1, as in the authors' program, or element by element 1 + |change| /
typical, for the change of theta while the mean was under way, in units of a typical one (gap-aware, Barkai et al.,
arXiv 1909.10802; which units CO2's paper takes is not certain, so they are an argument here). The authors' program
clips a copy, which has no effect; here m is clipped, and stays so for the next round. This is agreed arithmetic:
separate operations in fp32 on the CPU, each rounded once, in the order above.

**Replicas** (noloco.py, gossip.py) may have a delay as well, shorter than a round. Their exchange is about the weights
that were there when it was launched. What was trained since is in no answer yet, and is put on top of what the answer
has made of the replica:

    theta <- replica + (theta - theta_launched)

With a delay of 0 nothing was trained since, and theta is the replica itself, to the bit. What was trained since is a
part of the next contribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import DiLoCo, outer_step, pseudo_gradient
from shoal.node.training.methods.method import MOMENTUM, NONE, PARAMETERS, Answer, Contribution, Merged, Vectors

LAUNCHED = "launched"  # the weights that we contributed last, or began with


def check_delay(delay: int, inner_steps: int) -> None:
    """ValueError unless an answer is due before the next exchange begins."""
    if not 0 <= delay < inner_steps:
        raise ValueError(f"delay is {delay}; with {inner_steps} inner steps it must be from 0 to {inner_steps - 1}")


def launched(theta: Tensor, delay: int) -> Vectors:
    """The private vectors of who contributes `theta`, (d,), now; a copy, as training goes on in its place."""
    return {LAUNCHED: theta.float().clone()} if delay else NONE


def resumed(theta: Tensor, replica: Vectors, private: Vectors, delay: int) -> Merged:
    """The weights to train on, (d,), with the replica as the answer has left it."""
    if not delay:
        return Merged(replica[PARAMETERS], private)
    return Merged(replica[PARAMETERS] + (theta - private[LAUNCHED]), private)


class DelayedDiLoCo(DiLoCo):
    """The method: DiLoCo whose answers are due a round after their launch.

    What DiLoCo does without an answer is right here as well: all go back to the agreed parameters, unmoved.
    """

    def __init__(self, inner_steps: int, lr: float, momentum: float) -> None:
        super().__init__(inner_steps, lr, momentum)
        self.delay = inner_steps


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


def staleness_penalty(change: Tensor, typical: float) -> Tensor:
    """Lambda = 1 + |change| / typical, (d,) in fp32, for how far each weight has moved meanwhile; typical > 0."""
    assert change.dtype == torch.float32
    if not typical > 0:
        raise ValueError("the typical change of a weight must be positive")
    return change.abs() / torch.full_like(change, typical) + 1.0  # by a tensor: no shortcut by a reciprocal


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
    """The next (theta, momentum), (d,) in fp32, by the mean of the weights of the round before; those given if None.

    `lr` is eta, `momentum_factor` sigma, `clip` phi (infinite: none), `penalty` Lambda.
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
    """The method: as `DelayedDiLoCo`, but the weights themselves are sent, and the outer step is another.

    While a mean was under way the agreed parameters moved by the step before, which is eta m: no vector of its own is
    kept for the penalty. (After an aborted round they stood still, and the penalty is that of the step before it.)
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

"""NoLoCo: no all-reduce; in each round replicas are drawn in pairs and pull each other closer (arXiv 2506.10911).

Each replica i has slow weights phi_i, from which a round starts, and after H inner steps fast weights theta_i. A group
of n, here a pair (`protocol/replicas/meeting.py`), exchanges Delta = theta - phi and phi. Delta is added, so it points
downhill, unlike the pseudo-gradient of diloco.py:

    m_i <- alpha m_i + (beta / n) sum_j Delta_j + gamma (mean_j phi_j - phi_i)
    phi_i <- phi_i + m_i        theta_i <- phi_i

The pull of gamma cancels out of the mean over replicas, so the mean follows heavy-ball DiLoCo for any gamma. With a new
group drawn each round, the differences between replicas vanish in the mean square iff

    0 < gamma < 2 (1 - alpha^2) / (1 - alpha (1 - 2 / n)),        for pairs: gamma < 2 (1 - alpha^2)

The bound is sharp for many replicas; a few are stable a little beyond it. alpha = 0.5 allows 1.5, alpha = 0.9 only
0.38.

phi and m are the replica: they are held like agreed vectors, but not agreed with anybody, so other machines need not
get the same bits. The arithmetic is plain fp32, and sums are in the group's order. All vectors of an exchange, our own
too, are used as the codec decodes them, so the pull cancels even with a lossy codec.

With a `delay`, training goes on for so many inner steps while the exchange is under way, and the result of these steps
is added to the new phi (late.py): theta <- phi_i + (theta_i - theta_i at the launch). It is in the next Delta.

- Late: a pair is drawn for one round; what comes after it is dropped. A replica that is early waits for the answer.
- Without an exchange in a round (a bye, or the partner is gone) phi and m stay, and the replica trains on from theta.
  The next Delta is that of both rounds.
- One-sided: if only one of two has applied, the mean is off by half of what the other missed; later pulls spread it.
- Join: with a copy of any member's slow weights and momentum. A member that dies takes its replica along; nobody waits.
- A worker that dies while its daemon lives loses what it has trained since the last answer. The next worker begins with
  phi.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.manifest.method import check_stability
from shoal.node.training.methods.late import check_delay, launched, resumed
from shoal.node.training.methods.method import (
    MOMENTUM,
    PARAMETERS,
    Answer,
    Contribution,
    Exchange,
    Merged,
    MethodDefaults,
    Vectors,
)


def pull(
    slow: Tensor, momentum: Tensor, group: Tensor, own: int, *, alpha: float, beta: float, gamma: float
) -> tuple[Tensor, Tensor]:
    """The next (slow weights, momentum) of replica `own` of a group, both (d,) in fp32; arguments are not changed.

    `group` is (n, 2, d): Delta and phi of each replica, in the same order for all of the group.
    """
    n = len(group)
    deltas, slows = group[0, 0], group[0, 1]
    for each in group[1:]:
        deltas = deltas + each[0]
        slows = slows + each[1]
    momentum = momentum * alpha
    momentum = momentum + deltas * (beta / n)
    momentum = momentum + (slows / n - group[own, 1]) * gamma
    return slow + momentum, momentum


class NoLoCo(MethodDefaults):
    """The method: the whole replica is exchanged with one partner after each `inner_steps` steps.

    `delay` is the number of inner steps until training waits for the answer.
    """

    exchange = Exchange.PAIR
    sends: tuple[str, ...] = (PARAMETERS,)
    merges_weights = True

    def __init__(self, inner_steps: int, alpha: float, beta: float, gamma: float, delay: int = 0) -> None:
        """ValueError if replicas would drift apart, or two exchanges could be under way at once."""
        check_stability(alpha, gamma)
        check_delay(delay, inner_steps)
        self.period, self.delay = inner_steps, delay
        self._alpha, self._beta, self._gamma = alpha, beta, gamma

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The replica consists of slow weights and their momentum."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, launched(theta, self.delay)

    def join(self, agreed: Vectors) -> Vectors:
        """The slow weights stand for the launched ones, as nothing was trained since."""
        return launched(agreed[PARAMETERS], self.delay)

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """Delta, (d,); phi is sent along."""
        return Contribution(theta.float() - agreed[PARAMETERS], launched(theta, self.delay))

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The replica after the pull."""
        slow, momentum = pull(
            agreed[PARAMETERS],
            agreed[MOMENTUM],
            answer.value,
            answer.own,
            alpha=self._alpha,
            beta=self._beta,
            gamma=self._gamma,
        )
        return {PARAMETERS: slow, MOMENTUM: momentum}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The slow weights, with what was trained during the delay."""
        return resumed(theta, agreed, private, self.delay)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """The weights as they are; the next exchange includes them."""
        return Merged(theta, private)

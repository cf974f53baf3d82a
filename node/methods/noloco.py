"""NoLoCo: no all-reduce, each round two replicas that are drawn for it pull each other closer (arXiv 2506.10911).

Each replica i has slow weights phi_i, from which a round starts, and after H inner steps fast weights theta_i. A group
of n, here a pair (`meeting`), exchanges Delta = theta - phi and phi. Delta points downhill, unlike the pseudo-gradient
of `diloco`, as it is added:

    m_i <- alpha m_i + (beta / n) sum_j Delta_j + gamma (mean_j phi_j - phi_i)
    phi_i <- phi_i + m_i        theta_i <- phi_i

The pull of gamma cancels out of the mean over replicas, which so follows heavy-ball DiLoCo whatever gamma is. How far
replicas differ, with a group drawn afresh each round, vanishes in the mean square iff

    0 < gamma < 2 (1 - alpha^2) / (1 - alpha (1 - 2 / n)),        for pairs: gamma < 2 (1 - alpha^2)

which is sharp for many replicas; a few are stable a little beyond it. alpha = 0.5 allows 1.5, alpha = 0.9 only 0.38.

Nothing is agreed, so nothing need have the same bits elsewhere. Still the arithmetic is plain fp32 and sums are in the
group's order. What is exchanged, our own part as well, is taken as the codec has made it: so the pull cancels also
where that loses something.

- Late: the draft was for one round; what comes after it is dropped.
- A round without an exchange, be it a bye or a partner that is gone, is a no-op of the exchange: phi and m stay, and
  the replica trains on from theta. The next Delta is that of both rounds.
- One-sided: if only one of two has applied, the mean is off by half of what the other missed; later pulls spread it.
- Join: with the slow weights of any member, and momentum 0. Who dies takes its replica along; no other waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.methods.fragments import Fragment
from shoal.node.methods.method import MOMENTUM, NONE, PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors

SLOW = "slow weights"  # phi


def gamma_limit(alpha: float, group: int = 2) -> float:
    """Where stability ends; 0 <= alpha < 1, and a group has two or more."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha, the momentum, is {alpha}; it must be at least 0 and less than 1")
    if group < 2:
        raise ValueError(f"a group of {group} has nobody to exchange with; it needs at least 2")
    return 2 * (1 - alpha * alpha) / (1 - alpha * (1 - 2 / group))


def check_stability(alpha: float, gamma: float, group: int = 2) -> None:
    """ValueError if replicas with this momentum and this pull would drift apart."""
    limit = gamma_limit(alpha, group)
    if not 0 < gamma < limit:
        raise ValueError(
            f"gamma, the pull, is {gamma}; with alpha = {alpha} and groups of {group} "
            f"replicas stay together only if it is more than 0 and less than {limit:.4g}"
        )


def pull(
    slow: Tensor, momentum: Tensor, group: Tensor, own: int, *, alpha: float, beta: float, gamma: float
) -> tuple[Tensor, Tensor]:
    """The next (slow weights, momentum) of replica `own` of a group, both (d,) in fp32; arguments stay as they are.

    `group`: (n, 2, d), of each replica Delta and phi, in an order that all of the group share.
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


class NoLoCo:
    """The method: each `inner_steps` steps the whole replica, with one partner, for whom we wait."""

    exchange, wants_gradients, delay = Exchange.PAIR, False, 0
    reads: tuple[str, ...] = (PARAMETERS,)
    keeps: tuple[str, ...] = (SLOW, MOMENTUM)
    merges_weights = merges_answers = True

    def __init__(self, inner_steps: int, alpha: float, beta: float, gamma: float) -> None:
        check_stability(alpha, gamma)
        self.period, self._alpha, self._beta, self._gamma = inner_steps, alpha, beta, gamma

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Nothing is agreed; slow weights and their momentum are private."""
        return NONE, {SLOW: theta, MOMENTUM: torch.zeros_like(theta)}

    def join(self, agreed: Vectors) -> Vectors:
        """The copy is the slow weights, without momentum."""
        return {SLOW: agreed[PARAMETERS], MOMENTUM: torch.zeros_like(agreed[PARAMETERS])}

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round."""
        return (0,) if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """Delta and phi, (2, d)."""
        slow = private[SLOW]
        return Contribution(torch.stack((theta.float() - slow, slow)), private)

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """Nothing."""
        return agreed

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """The slow weights, pulled; training goes on from there."""
        slow, momentum = pull(
            private[SLOW],
            private[MOMENTUM],
            answer.value,
            answer.own,
            alpha=self._alpha,
            beta=self._beta,
            gamma=self._gamma,
        )
        return Merged(slow, {SLOW: slow, MOMENTUM: momentum})

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """It trains on, and exchanges the next time."""
        return Merged(theta, private)

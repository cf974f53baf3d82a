"""NoLoCo: no all-reduce, each round two replicas that are drawn for it pull each other closer (arXiv 2506.10911).

Each replica i has slow weights phi_i, from which a round starts, and after H inner steps fast weights theta_i. A
group of n, here a pair (`protocol/replicas/meeting.py`), exchanges Delta = theta - phi and phi. Delta points
downhill, unlike the pseudo-gradient of `diloco`, as it is added:

    m_i <- alpha m_i + (beta / n) sum_j Delta_j + gamma (mean_j phi_j - phi_i)
    phi_i <- phi_i + m_i        theta_i <- phi_i

The pull of gamma cancels out of the mean over replicas, which so follows heavy-ball DiLoCo whatever gamma is. How far
replicas differ, with a group drawn afresh each round, vanishes in the mean square iff

    0 < gamma < 2 (1 - alpha^2) / (1 - alpha (1 - 2 / n)),        for pairs: gamma < 2 (1 - alpha^2)

which is sharp for many replicas; a few are stable a little beyond it. alpha = 0.5 allows 1.5, alpha = 0.9 only 0.38.

phi and m are the replica: they are held as agreed vectors are, but are agreed with nobody, so nothing need have the
same bits elsewhere. Still the arithmetic is plain fp32 and sums are in the group's order. What is exchanged, our own
part as well, is taken as the codec has made it: so the pull cancels also where that loses something.

With a `delay` training goes on for so many inner steps while the exchange is under way, and what was trained in them
is put on top of the new phi (late.py): theta <- phi_i + (theta_i - theta_i at the launch). It is in the next Delta.

- Late: the draft was for one round; what comes after it is dropped. Who is there before the answer waits for it.
- A round without an exchange, be it a bye or a partner that is gone, is a no-op of the exchange: phi and m stay, and
  the replica trains on from theta. The next Delta is that of both rounds.
- One-sided: if only one of two has applied, the mean is off by half of what the other missed; later pulls spread it.
- Join: with a copy of any member's slow weights and momentum. Who dies takes its replica along; no other waits.
- A worker that dies alone takes along what it has trained since the last answer, over all rounds without one. The next
  one begins with phi.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.manifest.method import check_stability
from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.late import check_delay, launched, resumed
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors


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
    """The method: each `inner_steps` steps the whole replica, with one partner.

    `delay` is how many inner steps are made before the answer is waited for.
    """

    exchange, wants_gradients = Exchange.PAIR, False
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = (PARAMETERS,)
    keeps: tuple[str, ...] = ()
    merges_weights, merges_answers = True, False

    def __init__(self, inner_steps: int, alpha: float, beta: float, gamma: float, delay: int = 0) -> None:
        """ValueError for settings with which replicas would drift apart, or two exchanges be under way."""
        check_stability(alpha, gamma)
        check_delay(delay, inner_steps)
        self.period, self.delay = inner_steps, delay
        self._alpha, self._beta, self._gamma = alpha, beta, gamma

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """The replica is slow weights and their momentum."""
        return {PARAMETERS: theta, MOMENTUM: torch.zeros_like(theta)}, launched(theta, self.delay)

    def join(self, agreed: Vectors) -> Vectors:
        """Nothing was trained since."""
        return launched(agreed[PARAMETERS], self.delay)

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round."""
        return (0,) if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """Delta, (d,); phi goes along."""
        return Contribution(theta.float() - agreed[PARAMETERS], launched(theta, self.delay))

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The replica, pulled."""
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
        """The slow weights; training goes on from there."""
        return resumed(theta, agreed, private, self.delay)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """It trains on, and exchanges the next time."""
        return Merged(theta, private)

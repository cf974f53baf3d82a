"""The mean of a round is applied at the end of the next one, or never."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.node.training.methods.diloco import outer_step, pseudo_gradient
from shoal.node.training.methods.late import DelayedDiLoCo
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from tests.unit.methods.mean_kit import Swarm, descent, mean

LR, MU, H, PEERS = 0.7, 0.9, 3, 2
TARGETS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 4.0]])
START = torch.tensor([3.0, 3.0, 3.0])
TRAIN = descent(TARGETS, 0.1)


def delayed_step(
    theta: Tensor, momentum: Tensor, late: Tensor | None, *, lr: float, momentum_factor: float
) -> tuple[Tensor, Tensor]:
    """The next (theta, momentum), (d,) in fp32, by the mean of the round before; those given if it has none."""
    if late is None:
        return theta, momentum
    return outer_step(theta, momentum, late, lr=lr, momentum_factor=momentum_factor)


def by_hand(rounds: int, aborted: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """The rule as its docstring writes it, without a class: rounds from 0, everybody's training from the same theta."""
    theta, momentum, under_way = START, torch.zeros(3), None
    for t in range(rounds):
        ends = [theta] * PEERS
        for step in range(t * H + 1, t * H + H + 1):
            ends = [TRAIN(peer, step, end) for peer, end in enumerate(ends)]
        delta = mean([pseudo_gradient(theta, end) for end in ends])
        theta, momentum = delayed_step(theta, momentum, under_way, lr=LR, momentum_factor=MU)
        under_way = None if t in aborted else delta
    return theta, momentum


def test_the_first_step_changes_nothing_and_the_second_applies_the_first_mean() -> None:
    theta, momentum = torch.tensor([1.0]), torch.tensor([0.0])
    assert delayed_step(theta, momentum, None, lr=LR, momentum_factor=MU) == (theta, momentum)
    theta, momentum = delayed_step(theta, momentum, torch.tensor([0.3]), lr=LR, momentum_factor=MU)
    assert theta.item() == pytest.approx(0.601, abs=1e-7)
    assert momentum.item() == torch.tensor(0.3).item()


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
@pytest.mark.parametrize("aborted", [(), (0,), (1, 2), (3,)])
def test_peers_come_to_the_bits_of_the_rule(rounds: int, aborted: tuple[int, ...]) -> None:
    swarm = Swarm(DelayedDiLoCo(H, LR, MU), START, PEERS, TRAIN, lost={(t + 1) * H for t in aborted})
    theta, momentum = by_hand(rounds, aborted)
    for peer in swarm.run(rounds * H):
        assert torch.equal(peer.theta, theta)
        assert torch.equal(peer.agreed[PARAMETERS], theta)
        assert torch.equal(peer.agreed[MOMENTUM], momentum)


def test_round_0_applies_nothing_and_round_1_the_mean_of_round_0() -> None:
    swarm = Swarm(DelayedDiLoCo(H, LR, MU), START, PEERS, TRAIN)
    assert all(torch.equal(peer.theta, START) for peer in swarm.run(H))
    want, _ = outer_step(START, torch.zeros(3), swarm.means[0, H], lr=LR, momentum_factor=MU)
    assert all(torch.equal(peer.theta, want) for peer in swarm.run(H))


def test_the_mean_of_an_aborted_round_is_never_applied() -> None:
    swarm = Swarm(DelayedDiLoCo(H, LR, MU), START, PEERS, TRAIN, lost={H})
    assert all(torch.equal(peer.agreed[PARAMETERS], START) for peer in swarm.run(2 * H))
    want, _ = outer_step(START, torch.zeros(3), swarm.means[0, 2 * H], lr=LR, momentum_factor=MU)
    assert all(torch.equal(peer.theta, want) for peer in swarm.run(H))
    assert not torch.equal(want, START)


def test_an_answer_is_due_a_round_after_its_launch() -> None:
    method = DelayedDiLoCo(H, LR, MU)
    assert method.delay == H
    assert [step for step in range(1, 10) if method.launches(step)] == [3, 6, 9]

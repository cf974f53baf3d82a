"""Two rounds of DiLoCo by hand: outer learning rate 0.7, Nesterov momentum 0.9 (heavy ball would differ)."""

from __future__ import annotations

import pytest
import torch

from shoal.node.training.methods.diloco import outer_step, pseudo_gradient


def test_two_rounds() -> None:
    theta, b = torch.tensor([1.0]), torch.tensor([0.0])
    deltas = [pseudo_gradient(theta, torch.tensor([end])) for end in (0.8, 0.6)]
    delta = (deltas[0] + deltas[1]) / 2
    assert delta.item() == pytest.approx(0.3)
    theta, b = outer_step(theta, b, delta, lr=0.7, momentum_factor=0.9)
    assert b.item() == pytest.approx(0.3)  # the first momentum is Delta itself
    assert theta.item() == pytest.approx(0.601)
    theta, b = outer_step(theta, b, torch.tensor([0.2]), lr=0.7, momentum_factor=0.9)
    assert b.item() == pytest.approx(0.47)
    assert theta.item() == pytest.approx(0.1649)


def test_bits() -> None:
    """The bits that every machine must come to, denormals included (a CPU that flushes them would differ)."""
    theta = torch.tensor([1.0, -0.1, 3e-39, 1e30])
    b = torch.tensor([0.3, 1e-3, 1e-40, -1e29])
    delta = torch.tensor([0.2, -1e-5, 2e-39, 3e28])
    theta, b = outer_step(theta, b, delta, lr=0.7, momentum_factor=0.9)
    assert (theta.view(torch.int32).tolist(), b.view(torch.int32).tolist()) == (THETA_BITS, B_BITS)


THETA_BITS = [1058036672, -1110577383, 202170, 1900894036]
B_BITS = [1055957976, 979980004, 1491474, -280895785]

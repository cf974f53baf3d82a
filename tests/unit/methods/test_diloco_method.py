"""The class of DiLoCo: all start a round at the same weights, and a lost round changes nothing."""

from __future__ import annotations

import torch

from shoal.node.training.methods.diloco import DiLoCo, outer_step
from shoal.node.training.methods.method import MOMENTUM, NONE, PARAMETERS
from tests.unit.methods.mean_kit import Swarm, descent

LR, MU, H = 0.7, 0.9, 3
START = torch.tensor([3.0, -1.0])
TRAIN = descent(torch.tensor([[1.0, -2.0], [0.0, 1.0]]), 0.1)


def test_rounds_are_outer_steps_and_a_lost_one_changes_nothing() -> None:
    swarm = Swarm(DiLoCo(H, LR, MU), START, 2, TRAIN, lost={2 * H})
    theta, momentum = START, torch.zeros(2)
    for step in (H, 2 * H, 3 * H):
        peers = swarm.run(H)
        if step != 2 * H:
            theta, momentum = outer_step(theta, momentum, swarm.means[0, step], lr=LR, momentum_factor=MU)
        for peer in peers:
            assert torch.equal(peer.theta, theta)
            assert torch.equal(peer.agreed[PARAMETERS], theta)
            assert torch.equal(peer.agreed[MOMENTUM], momentum)
    assert DiLoCo(H, LR, MU).join(peers[0].agreed) is NONE

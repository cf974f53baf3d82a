"""Committed states of DiLoCo, and its outer step as a rule."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import outer_step
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.state.committed import CommittedState, Rule, Vectors
from shoal.node.training.state.shape import StateShape


def state_of(shape: StateShape, theta: Tensor, momentum: Tensor | None = None, round: int = 0) -> CommittedState:
    """A state of parameters `theta` and a momentum, which is zeros by default."""
    momentum = torch.zeros_like(theta) if momentum is None else momentum
    return CommittedState(shape, {PARAMETERS: theta, MOMENTUM: momentum}, round)


def nesterov(lr: float = 0.7, momentum: float = 0.9) -> Rule:
    """The outer step of DiLoCo."""

    def rule(agreed: Vectors, mean: Tensor, start: int) -> Vectors:
        theta, moved = outer_step(agreed[PARAMETERS], agreed[MOMENTUM], mean, lr=lr, momentum_factor=momentum)
        return {PARAMETERS: theta, MOMENTUM: moved}

    return rule

"""Converts the optimizers' state between torch's dictionaries and the flat vector of node/ipc/vectors.py, bit for bit.

Muon only has momentum, so the second moments of its weights are 0 in the vector. It does not count steps either, but
some weights always belong to AdamW, and all are stepped together.

A weight that had no gradient yet has no state: its moments are 0 in the vector, and `restore` gives it none, so its
step count begins at 0. With the others' step count and moments of 0, its first step would be several times too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from shoal.node.training.models.layout import Layout, trained

FIRST, SECOND = "exp_avg", "exp_avg_sq"  # torch's names in AdamW, and ours in checkpoints
MOMENTUM = "momentum_buffer"  # torch's name in Muon


def halves(vector: Tensor, elements: int) -> dict[str, Tensor]:
    """The two moments (d,) by name, as views of the vector."""
    return {FIRST: vector[1 : 1 + elements], SECOND: vector[1 + elements : 1 + 2 * elements]}


def private_views(vector: Tensor, elements: int, names: Sequence[str]) -> dict[str, Tensor]:
    """The private vectors (d,) by name, as views of the vector."""
    return {
        name: vector[1 + place * elements : 1 + (place + 1) * elements] for place, name in enumerate(names, start=2)
    }


def store(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, layout: Layout, out: Tensor) -> None:
    """Writes the optimizers' state to `out`, (1 + 2 d,) or longer, on the CPU."""
    out[0] = 0
    steps = 0.0
    firsts, seconds = (layout.views(half) for half in halves(out, layout.size).values())
    for name, weight, optimizer in _owned(optimizers, model):
        state = optimizer.state.get(weight)
        for view, moments in ((firsts[name], (FIRST, MOMENTUM)), (seconds[name], (SECOND,))):
            found = next((state[each] for each in moments if each in state), None) if state else None
            view.zero_() if found is None else view.copy_(found)
        if state and MOMENTUM not in state:
            steps = max(steps, float(state["step"]))
    out[0] = steps


def restore(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, layout: Layout, vector: Tensor) -> None:
    """Sets the optimizers' state from a stored one; a state of 0 steps leaves them as they are."""
    if not vector[0]:
        return
    firsts, seconds = (layout.views(half) for half in halves(vector, layout.size).values())
    for name, weight, optimizer in _owned(optimizers, model):
        first = firsts[name].to(weight.device, copy=True)
        if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            if not seconds[name].any():
                continue  # the weight had no gradient
            second, step = (each.to(weight.device, copy=True) for each in (seconds[name], vector[0]))
            optimizer.state[weight] = {"step": step, FIRST: first, SECOND: second}
        else:
            optimizer.state[weight] = {MOMENTUM: first}


def _owned(
    optimizers: Sequence[torch.optim.Optimizer], model: nn.Module
) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
    """The model's trained weights by name, each with the optimizer that steps it."""
    owners = {weight: each for each in optimizers for group in each.param_groups for weight in group["params"]}
    return ((name, weight, owners[weight]) for name, weight in trained(model))

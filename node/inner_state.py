"""AdamW's state, from torch's dictionaries to the flat vector of moments.py and back, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.node.layout import Layout

FIRST, SECOND = "exp_avg", "exp_avg_sq"  # torch's names


def halves(vector: Tensor) -> dict[str, Tensor]:
    """The moments (d,) by name, sharing the vector's memory."""
    first, second = vector[1:].chunk(2)
    return {FIRST: first, SECOND: second}


def store(optimizer: torch.optim.AdamW, model: nn.Module, layout: Layout, out: Tensor) -> None:
    """Write the optimizer's state to `out`, (1 + 2 d,) on the CPU."""
    out[0] = 0
    states = {name: optimizer.state[each] for name, each in model.named_parameters() if each in optimizer.state}
    if not states:
        return
    for key, half in halves(out).items():
        layout.pack({name: state[key] for name, state in states.items()}, half)
    out[0] = float(next(iter(states.values()))["step"])


def restore(optimizer: torch.optim.AdamW, model: nn.Module, layout: Layout, vector: Tensor) -> None:
    """Go on from a state that was stored; one of 0 steps leaves the optimizer as it is."""
    if not vector[0]:
        return
    views = {key: layout.views(half) for key, half in halves(vector).items()}
    for name, weight in model.named_parameters():
        optimizer.state[weight] = {
            "step": vector[0].to(weight.device, copy=True),
            **{key: named[name].to(weight.device, copy=True) for key, named in views.items()},
        }

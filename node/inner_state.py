"""AdamW's state, from torch's dictionaries to the flat vector of moments.py and back, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.node.layout import Layout

FIRST, SECOND = "exp_avg", "exp_avg_sq"  # torch's names


def halves(vector: Tensor, elements: int) -> dict[str, Tensor]:
    """The moments (d,) by name, sharing the vector's memory."""
    return {FIRST: vector[1 : 1 + elements], SECOND: vector[1 + elements : 1 + 2 * elements]}


def private_views(vector: Tensor, elements: int, names: Sequence[str]) -> dict[str, Tensor]:
    """The private vectors (d,) by name, sharing the vector's memory."""
    return {
        name: vector[1 + place * elements : 1 + (place + 1) * elements] for place, name in enumerate(names, start=2)
    }


def store(optimizer: torch.optim.AdamW, model: nn.Module, layout: Layout, out: Tensor) -> None:
    """Write the optimizer's state to `out`, (1 + 2 d,) or longer, on the CPU."""
    out[0] = 0
    states = {name: optimizer.state[each] for name, each in model.named_parameters() if each in optimizer.state}
    if not states:
        return
    for key, half in halves(out, layout.size).items():
        layout.pack({name: state[key] for name, state in states.items()}, half)
    out[0] = float(next(iter(states.values()))["step"])


def restore(optimizer: torch.optim.AdamW, model: nn.Module, layout: Layout, vector: Tensor) -> None:
    """Go on from a state that was stored; one of 0 steps leaves the optimizer as it is."""
    if not vector[0]:
        return
    views = {key: layout.views(half) for key, half in halves(vector, layout.size).items()}
    for name, weight in model.named_parameters():
        optimizer.state[weight] = {
            "step": vector[0].to(weight.device, copy=True),
            **{key: named[name].to(weight.device, copy=True) for key, named in views.items()},
        }

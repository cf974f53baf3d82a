"""A user's script that trains one run after the other, by each method:

    python script_of_methods.py FOLDER PLACE METHOD...

The script of place 0 founds the runs, and leaves their links in the folder; that of place 1 joins them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAST = 4
METHODS: Mapping[str, Mapping[str, Any]] = {
    "diloco": {"inner_steps": 5},
    "streaming-diloco": {"inner_steps": 6, "strides": 2, "delay": 1},
    "sparseloco": {"inner_steps": 5},
    "diloco-delayed": {"inner_steps": 5},
    "diloco-eager": {"inner_steps": 5},
    "co2": {"inner_steps": 5},
}
REPLICAS: Mapping[str, Mapping[str, Any]] = {"noloco": {"inner_steps": 6}, "gossip": {"inner_steps": 6}}


class Net(nn.Module):
    """Four layers in fp32, and a scale that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.scale * self.head(x)


def train(folder: Path, place: int, method: str) -> str:
    """Train in one run to its end; the progress that the script has seen by then."""
    from shoal.node import create, join

    link = folder / f"{method}.link"
    if place:
        while not link.exists():
            time.sleep(0.05)
        run = join(link.read_text())
    else:
        rounds = {"last": LAST, "pace": "steps"}
        settings = {"name": method, "batch": 4, **{**METHODS, **REPLICAS}[method]}
        run = create(method, method=settings, rounds=rounds)
    torch.manual_seed(place)
    model = Net()
    groups: list[dict[str, Any]]
    groups = [{"params": list(model.layers.parameters())}, {"params": list(model.head.parameters()), "lr": 1e-3}]
    optimizer: torch.optim.Optimizer
    optimizer = torch.optim.SGD(groups, lr=1e-2) if method == "sparseloco" else torch.optim.Adam(groups, lr=1e-2)
    assert run.wrap(optimizer, model) is optimizer
    scheduler = run.follow(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99))
    if not place:
        fresh = folder / f".{method}"
        fresh.write_text(run.link)
        fresh.rename(link)
    while not run.is_over:
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        scheduler.step()
    optimizer.step()  # nothing comes of it
    torch.save(model.state_dict(), folder / f"{method}-{place}.pt")
    run.close()
    return f"{method}:{run.progress.round}:{run.progress.step}:{optimizer.param_groups[0]['lr']:.9f}"


if __name__ == "__main__":
    own, number = Path(sys.argv[1]), int(sys.argv[2])
    (own / f"said-{number}").write_text("\n".join(train(own, number, each) for each in sys.argv[3:]))

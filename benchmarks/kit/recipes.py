"""The settings of each method and reference of convergence.py, and the grids from which they were chosen.

A recipe is a mapping: `inner_lr` (the peak), `inner_steps` (H) and `warm` (first steps that all make together) are the
training's; all else are settings of the method (shoal.node.lab.registry). A grid has a row of values for some of them:
all their combinations are tried, with the recipe's values for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from shoal.node.lab.study import Experiment
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec

Recipe = Mapping[str, float | int]
Grid = Mapping[str, tuple[float | int, ...]]

WORKERS = 8
ALONE, JOINED = "alone", "joined"
REFERENCES = (ALONE, JOINED)
INNER_STEPS = 20
WARM_UP = 0.15  # of all steps, until the inner learning rate is at its peak

CHOSEN: Mapping[str, Recipe] = {
    ALONE: {"inner_lr": 0.008},
    JOINED: {"inner_lr": 0.016},
    "ddp": {"inner_lr": 0.016},
    "diloco": {"inner_lr": 0.008, "warm": 40, "lr": 1.0, "momentum": 0.8},
    "diloco-delayed": {"inner_lr": 0.008, "warm": 40, "lr": 0.5, "momentum": 0.0, "inner_steps": 5},
    "diloco-eager": {"inner_lr": 0.008, "warm": 40, "lr": 0.8, "momentum": 0.0, "inner_steps": 10},
    "co2": {"inner_lr": 0.008, "warm": 40, "lr": 1.0, "momentum": 0.3, "inner_steps": 5},
    "streaming-diloco": {
        "inner_lr": 0.012,
        "warm": 40,
        "strides": 2,
        "delay": 1,
        "alpha": 0.0,
        "lr": 0.7,
        "momentum": 0.8,
    },
    "sparseloco": {"inner_lr": 0.008, "warm": 40, "lr": 3.0, "decay": 0.8, "inner_steps": 14},
    "noloco": {"inner_lr": 0.016, "warm": 40, "alpha": 0.0, "beta": 1.0, "gamma": 1.0, "inner_steps": 5},
    "gossip": {"inner_lr": 0.016, "warm": 40, "neighbours": 2.0, "inner_steps": 5},
}
GRIDS: Mapping[str, Grid] = {
    ALONE: {"inner_lr": (0.002, 0.004, 0.008)},
    JOINED: {"inner_lr": (0.008, 0.016)},
    "ddp": {"inner_lr": (0.008, 0.016)},
    "diloco": {"inner_lr": (0.008, 0.016), "momentum": (0.7, 0.8)},
    "diloco-delayed": {"lr": (0.5, 0.7)},
    "diloco-eager": {"lr": (0.6, 0.8), "momentum": (0.0, 0.3)},
    "co2": {"momentum": (0.0, 0.3, 0.5)},
    "streaming-diloco": {"inner_lr": (0.012, 0.016), "lr": (0.7, 1.0)},
    "sparseloco": {"lr": (3.0, 5.0), "decay": (0.8, 0.9)},
    "noloco": {"inner_steps": (3, 5), "alpha": (0.0, 0.2)},
    "gossip": {"inner_lr": (0.008, 0.016), "inner_steps": (5,)},
}


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and how many sequences a worker takes for a step."""

    model: ModelSpec
    batch: int


SIZES = {
    "small": Size(ModelSpec(dim=32, layers=2, heads=2, kv_heads=1, hidden=96, context=64), 8),
    "full": Size(ModelSpec(dim=256, layers=6, heads=4, kv_heads=2, hidden=768, context=256), 8),
    "tiny": Size(ModelSpec(dim=8, layers=2, heads=2, kv_heads=1, hidden=8, context=8), 1),
}


def points(name: str, grid: Grid) -> list[Recipe]:
    """The recipe of `name` with each combination of the grid's values."""
    return [{**CHOSEN[name], **dict(zip(grid, values, strict=True))} for values in product(*grid.values())]


def training(name: str, recipe: Recipe, steps: int) -> Experiment:
    """The laboratory's experiment for a method or a reference."""
    if name in REFERENCES:
        lanes = WORKERS if name == JOINED else 1
        return Experiment("diloco", workers=1, lanes=lanes, steps=steps, warm=steps)  # all its steps are plain ones
    own = tuple(f"{key}={value}" for key, value in recipe.items() if key not in ("inner_lr", "inner_steps", "warm"))
    return Experiment(name, own, WORKERS, steps=steps, warm=int(recipe.get("warm", 0)))


def manifest(size: Size, recipe: Recipe, seed: int, steps: int) -> Manifest:
    """Model, batches and inner optimizer of a training of so many steps."""
    method = MethodSpec(
        batch=size.batch,
        inner_lr=recipe["inner_lr"],
        inner_steps=int(recipe.get("inner_steps", INNER_STEPS)),
        warmup_steps=round(WARM_UP * steps),
    )
    return Manifest(name="convergence", seed=seed, model=size.model, method=method)

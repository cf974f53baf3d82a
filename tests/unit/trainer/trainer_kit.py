"""Small trainers, and functions that read their weights, moments and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.trainer.inner import InnerTrainer
from tests.unit.test_inner import CORPUS

MODEL = ModelSpec(dim=16, layers=2, heads=2, kv_heads=1, hidden=24, context=16)
BATCH = 8


def manifest(layers: int = MODEL.layers, **method: Any) -> Manifest:
    usual: dict[str, Any] = {"inner_steps": 4, "batch": BATCH, "inner_lr": 1e-2, "warmup_steps": 2}
    model = MODEL.model_copy(update={"layers": layers})
    return Manifest(name="tiny", model=model, method=MethodSpec(**usual | method))


def trainer(micro_batch: int = 0, recompute: bool = False, compiled: bool = False, **more: Any) -> InnerTrainer:
    return InnerTrainer(manifest(**more), CORPUS, options=TrainerOptions(micro_batch, recompute, compiled))


def weights(each: InnerTrainer) -> Tensor:
    return each.layout.read(each.model)


def stored(each: InnerTrainer) -> Tensor:
    vector = torch.full((moments_size(each.layout.size),), torch.nan)
    each.store(vector)
    return vector


def gradient(each: InnerTrainer) -> Tensor:
    """The gradient of the last step, as the optimizer used it."""
    found = {name: weight.grad for name, weight in each.model.named_parameters() if weight.grad is not None}
    return each.layout.pack(found)


class SmallMemory:
    """Makes the forward pass of more than `rows` sequences fail as a GPU without room does; `rows` may change."""

    def __init__(self, each: InnerTrainer, rows: int) -> None:
        self.rows = rows
        self.seen: list[int] = []  # how many sequences were tried at once
        each.model.get_submodule("model").register_forward_pre_hook(self._look)

    def _look(self, _: object, inputs: tuple[Tensor]) -> None:
        self.seen.append(len(inputs[0]))
        if self.seen[-1] > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

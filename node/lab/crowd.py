"""Many virtual workers that train at once: their weights are the rows of one matrix.

All make the same inner step on their own batches: gradients by one pass for all (many.py), then AdamW, also in one
call. Rows are independent, except in steps that all make together.

Shapes: M workers, d parameters, B sequences of T + 1 tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.lab import many
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import ModelSpec
from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.methods.schedule import lr_factor
from shoal.node.training.models.decoder import Llama, build
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError

EPSILON = 1e-8  # AdamW's


class Crowd:
    """The weights of all workers, (M, d), and each one's AdamW."""

    def __init__(
        self,
        manifest: Manifest,
        text: Tensor,
        workers: int,
        steps: int,
        *,
        lanes: int = 1,
        device: str = "cpu",
    ) -> None:
        """All begin equal. `text` is a uint8 vector; `steps` is the length of the whole run, for the schedule.

        `lanes`: how many batches a worker takes together as one, those of its own lanes.
        """
        self.manifest, self.workers, self.device = manifest, workers, torch.device(device)
        self._text, self._total, self._lanes = text, steps, lanes
        self._spec = own_decoder(manifest)
        self._model: Llama = build(self._spec, manifest.seed)
        self.layout = Layout.of(self._model)
        self.weights = self.layout.read(self._model).to(self.device).repeat(workers, 1)
        self._model.to(self.device)
        self._first, self._second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._decayed = decayed(self.layout).to(self.device)
        self._made = 0

    def model_of(self, weights: Tensor) -> Llama:
        """The model with these weights, (d,); the same object each time."""
        self.layout.load(weights, self._model)
        return self._model

    def gradients(self, step: int) -> tuple[Tensor, Tensor]:
        """Each worker's gradient, (M, d), at its weights on its batch of inner step `step` (from 1); its loss, (M,)."""
        tokens = torch.stack([self._batch(worker, step) for worker in range(self.workers)])
        return many.gradients(self._spec, self.layout, self.weights, tokens.to(self.device))

    def step(self, step: int, *, together: bool = False) -> Tensor:
        """One inner step of all; their losses, (M,), before it.

        `together`: each by the mean of all their gradients, clipped one by one, as data-parallel training has it.
        """
        gradients, losses = self.gradients(step)
        norms = gradients.norm(dim=1, keepdim=True)
        clipped = gradients * (self.manifest.method.clip / (norms + 1e-6)).clamp(max=1.0)
        self._update(clipped.mean(0).expand_as(clipped) if together else clipped, step)
        return losses

    def rate(self, step: int) -> float:
        """The learning rate of inner step `step` (from 1)."""
        spec = self.manifest.method
        factor = lr_factor(step - 1, warmup=spec.warmup_steps, total=self._total, decay_share=spec.decay_share)
        return spec.inner_lr * factor

    def _update(self, gradients: Tensor, step: int) -> None:
        """AdamW on each row (Loshchilov and Hutter, arXiv 1711.05101), as torch.optim.AdamW does it."""
        self._made += 1
        spec, rate, count = self.manifest.method, self.rate(step), self._made
        one, two = spec.betas
        self.weights.mul_(1 - rate * spec.weight_decay * self._decayed)
        self._first.lerp_(gradients, 1 - one)
        self._second.mul_(two).addcmul_(gradients, gradients, value=1 - two)
        spread = self._second.sqrt().div_((1 - two**count) ** 0.5).add_(EPSILON)
        self.weights.addcdiv_(self._first, spread, value=-rate / (1 - one**count))

    def _batch(self, worker: int, step: int) -> Tensor:
        """(B, T + 1), of all its lanes."""
        own = range(worker * self._lanes, (worker + 1) * self._lanes)
        spec, seed, context = self.manifest.method, self.manifest.seed, self.manifest.model.context
        return torch.cat([lane_batch(self._text, seed, lane, 0, step, spec.batch, context) for lane in own])


def own_decoder(manifest: Manifest) -> ModelSpec:
    """The manifest's model, if it is one that many workers can train in one pass; LocalError if not."""
    if not isinstance(manifest.model, ModelSpec):
        raise LocalError(f"the laboratory trains Shoal's own decoder, and no model of kind {manifest.model.name}")
    return manifest.model


def decayed(layout: Layout) -> Tensor:
    """1 where weights decay, 0 for the norms' gains: (d,)."""
    mask = torch.ones(layout.size)
    for start, stop in layout.undecayed:
        mask[start:stop] = 0
    return mask

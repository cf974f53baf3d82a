"""Inner training: what one machine does between two averages. Used by workers and by the baselines.

The committed parameters are loaded at the start of each round. The optimizer's moments belong to the machine: they
are neither averaged nor reset (as in DiLoCo); `store` and `restore` let them outlive the process. How a step is made on
the machine's device is trainer/'s affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node import inner_state
from shoal.node.corpus import Corpus
from shoal.node.lanes import lane_batch
from shoal.node.layout import Layout
from shoal.node.manifest import Manifest
from shoal.node.methods.diloco import pseudo_gradient
from shoal.node.model import Llama, build
from shoal.node.schedule import inner_lr
from shoal.node.trainer.flops import utilization
from shoal.node.trainer.optimizers import make_optimizers, set_rate
from shoal.node.trainer.options import TrainerOptions
from shoal.node.trainer.stepper import Stepper


@dataclass(frozen=True, slots=True)
class InnerStep:
    """One inner step that is done: its number in the round (from 1), its loss, the round's tokens so far."""

    step: int
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class InnerRound:
    """What was done in a round: fewer steps than H if it was stopped early."""

    steps: int
    tokens: int
    loss: float  # mean over the steps


class InnerTrainer:
    """The model, its optimizers and the text, on one device."""

    def __init__(
        self,
        manifest: Manifest,
        corpus: Corpus,
        device: str = "cpu",
        options: TrainerOptions | None = None,
        peak: float | None = None,
    ) -> None:
        """`peak` is what the device can do, in operations a second, if that is to be known."""
        self.manifest = manifest
        self.text = corpus.train
        self.device = torch.device(device)
        self.model: Llama = build(manifest.model, manifest.seed).to(self.device)
        self.layout = Layout.of(self.model)
        self.optimizers = make_optimizers(self.model, manifest.method, self.device)
        self.stepper = Stepper(
            self.model, self.optimizers, manifest.method.clip, self.device, options or TrainerOptions()
        )
        self._peak = peak

    def load(self, theta: Tensor) -> None:
        """Start from the committed parameters, a flat fp32 vector."""
        self.layout.load(theta, self.model)

    def train(
        self, round: int, lanes: Sequence[int], keep_going: Callable[[InnerStep], bool] = lambda _: True
    ) -> InnerRound:
        """Up to H inner steps on the batches of `lanes`, joined; stops early when `keep_going` says no.

        It is asked after each step but the last, so at least one step is made.
        """
        total, tokens, step = 0.0, 0, 0
        for step in range(self.manifest.method.inner_steps):
            loss, seen = self._step(round, step, lanes)
            total, tokens = total + loss, tokens + seen
            if not keep_going(InnerStep(step + 1, loss, tokens)):
                break
        return InnerRound(step + 1, tokens, total / (step + 1))

    def contribute(self, theta: Tensor, out: Tensor) -> None:
        """Write the pseudo-gradient since `theta`, which was loaded, to the flat vector `out`."""
        starts, outs = self.layout.views(theta), self.layout.views(out)
        for name, weight in self.model.named_parameters():
            outs[name].copy_(pseudo_gradient(starts[name].to(self.device), weight.detach()))

    def store(self, out: Tensor) -> None:
        """Write the optimizers' state to a vector of `moments_size` numbers."""
        inner_state.store(self.optimizers, self.model, self.layout, out)

    def restore(self, vector: Tensor) -> None:
        """Go on with the optimizers' state of another process."""
        inner_state.restore(self.optimizers, self.model, self.layout, vector)
        self.stepper.begin_anew()  # what was recorded works on the state that was replaced

    @property
    def micro_batch(self) -> int:
        """How many sequences the last step has worked on at once; 0 before the first."""
        return self.stepper.micro_batch

    def utilization(self, tokens_per_second: float) -> float | None:
        """The share of the device's peak that training at this speed is (trainer/flops.py); None if it is not known."""
        return utilization(self.manifest.model, tokens_per_second, self._peak)

    def _step(self, round: int, step: int, lanes: Sequence[int]) -> tuple[float, int]:
        """One optimizer step; its loss and its tokens."""
        spec, context = self.manifest.method, self.manifest.model.context
        parts = [lane_batch(self.text, self.manifest.seed, lane, round, step, spec.batch, context) for lane in lanes]
        tokens = torch.cat(parts)  # (lanes * batch, context + 1)
        for optimizer in self.optimizers:
            set_rate(optimizer, inner_lr(self.manifest, round, step))
        return self.stepper.step(tokens).item(), tokens.shape[0] * context

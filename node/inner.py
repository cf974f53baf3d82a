"""Inner training: what one machine does between two averages. Used by workers and by the baselines.

The committed parameters are loaded at the start of each round. AdamW's moments belong to the machine: they
are neither averaged nor reset (as in DiLoCo); `store` and `restore` let them outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node import inner_state
from shoal.node.corpus import Corpus
from shoal.node.device import mixed_precision
from shoal.node.lanes import lane_batch
from shoal.node.layout import Layout
from shoal.node.manifest import Manifest, MethodSpec
from shoal.node.methods.diloco import pseudo_gradient
from shoal.node.model import Llama, build
from shoal.node.recorded_step import RecordedStep
from shoal.node.schedule import inner_lr


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
    """The model, its AdamW and the text, on one device."""

    def __init__(self, manifest: Manifest, corpus: Corpus, device: str = "cpu") -> None:
        self.manifest = manifest
        self.text = corpus.train
        self.device = torch.device(device)
        self.model: Llama = build(manifest.model, manifest.seed).to(self.device)
        self.layout = Layout.of(self.model)
        self.optimizer = adamw(self.model, manifest.method, self.device)
        self._run = self._runner()

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
        """Write AdamW's state to a vector of `moments_size` numbers."""
        inner_state.store(self.optimizer, self.model, self.layout, out)

    def restore(self, vector: Tensor) -> None:
        """Go on with the AdamW state of another process."""
        inner_state.restore(self.optimizer, self.model, self.layout, vector)
        self._run = self._runner()  # what was recorded works on the state that was replaced

    def _step(self, round: int, step: int, lanes: Sequence[int]) -> tuple[float, int]:
        """One optimizer step; its loss and its tokens."""
        spec, context = self.manifest.method, self.manifest.model.context
        parts = [lane_batch(self.text, self.manifest.seed, lane, round, step, spec.batch, context) for lane in lanes]
        tokens = torch.cat(parts)  # (lanes * batch, context + 1)
        set_rate(self.optimizer, inner_lr(self.manifest, round, step))
        return self._run(tokens).item(), tokens.shape[0] * context

    def _runner(self) -> Callable[[Tensor], Tensor]:
        """What makes a step with tokens from the CPU."""
        if self.device.type == "cuda":
            return RecordedStep(self._update, self.device)
        return lambda tokens: self._update(tokens.to(self.device))

    def _update(self, tokens: Tensor) -> Tensor:
        """The device's part of a step: nothing in it waits for the CPU. The loss."""
        with mixed_precision(self.device):
            loss = self.model.loss(tokens)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.manifest.method.clip)
        self.optimizer.step()
        return loss.detach()


def adamw(model: Llama, spec: MethodSpec, device: torch.device) -> torch.optim.AdamW:
    """AdamW; the norms' gains are not decayed. On a GPU the rate lies there, where a recorded step reads it."""
    weights = list(model.parameters())
    groups = [
        {"params": [each for each in weights if each.ndim > 1], "weight_decay": spec.weight_decay},
        {"params": [each for each in weights if each.ndim == 1], "weight_decay": 0.0},
    ]
    recorded = device.type == "cuda"
    lr = torch.tensor(spec.inner_lr, device=device) if recorded else spec.inner_lr
    return torch.optim.AdamW(groups, lr=lr, betas=spec.betas, fused=True, capturable=recorded)


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

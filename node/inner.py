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
from shoal.node.manifest import Manifest
from shoal.node.method_spec import MethodSpec
from shoal.node.methods.registry import timetable_of
from shoal.node.model import Llama, build
from shoal.node.recorded_step import RecordedStep
from shoal.node.schedule import rate


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

    def __add__(self, other: InnerRound) -> InnerRound:
        """Both, one after the other."""
        steps = self.steps + other.steps
        total = self.loss * self.steps + other.loss * other.steps
        return InnerRound(steps, self.tokens + other.tokens, total / max(1, steps))


NOTHING = InnerRound(steps=0, tokens=0, loss=0.0)


class InnerTrainer:
    """The model, its AdamW and the text, on one device."""

    def __init__(self, manifest: Manifest, corpus: Corpus, device: str = "cpu") -> None:
        self.manifest = manifest
        self.text = corpus.train
        self.device = torch.device(device)
        self.model: Llama = build(manifest.model, manifest.seed).to(self.device)
        self.layout = Layout.of(self.model)
        self.timetable = timetable_of(manifest, self.layout)
        self.optimizer = adamw(self.model, manifest.method, self.device)
        self._run = self._runner()

    def load(self, theta: Tensor) -> None:
        """Go on from these weights, a flat fp32 vector."""
        self.layout.load(theta, self.model)

    def read(self, out: Tensor | None = None) -> Tensor:
        """A copy of the weights as a flat vector on the CPU, in `out` if given."""
        return self.layout.read(self.model, out)

    def train(
        self,
        round: int,
        lanes: Sequence[int],
        keep_going: Callable[[InnerStep], bool] = lambda _: True,
        first: int = 0,
        steps: int | None = None,
    ) -> InnerRound:
        """So many inner steps of the round on the batches of `lanes`, joined, from its step `first` (from 0) on.

        Without `steps`, all that the round has. It stops early when `keep_going` says no, which is asked after each
        step, so at least one is made.
        """
        total, tokens, made = 0.0, 0, 0
        for step in range(first, first + (self.timetable.steps(round) - first if steps is None else steps)):
            loss, seen = self._step(round, step, lanes)
            total, tokens, made = total + loss, tokens + seen, made + 1
            if not keep_going(InnerStep(step + 1, loss, tokens)):
                break
        return InnerRound(made, tokens, total / made)

    def gradient(self, round: int, lanes: Sequence[int], first: int, out: Tensor) -> InnerStep:
        """Write to `out`, (d,), the gradient at the weights on the batch of inner step `first`; none is made."""
        tokens = self._batch(round, first, lanes)
        self.optimizer.zero_grad()
        loss = self._backward(tokens.to(self.device))
        gradients = {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}
        self.layout.pack(gradients, out)
        return InnerStep(first + 1, loss.item(), tokens.shape[0] * (tokens.shape[1] - 1))

    def store(self, out: Tensor) -> None:
        """Write AdamW's state to a vector of `moments_size` numbers."""
        inner_state.store(self.optimizer, self.model, self.layout, out)

    def restore(self, vector: Tensor) -> None:
        """Go on with the AdamW state of another process."""
        inner_state.restore(self.optimizer, self.model, self.layout, vector)
        self._run = self._runner()  # what was recorded works on the state that was replaced

    def _step(self, round: int, step: int, lanes: Sequence[int]) -> tuple[float, int]:
        """One optimizer step; its loss and its tokens."""
        tokens, last = self._batch(round, step, lanes), self.manifest.rounds.last
        total = None if last is None else self.timetable.launch(last)
        set_rate(self.optimizer, rate(self.manifest, self.timetable.launch(round - 1) + step, total))
        return self._run(tokens).item(), tokens.shape[0] * (tokens.shape[1] - 1)

    def _batch(self, round: int, step: int, lanes: Sequence[int]) -> Tensor:
        """Tokens (lanes * batch, context + 1) of the round's inner step `step`, from 0."""
        spec, context = self.manifest.method, self.manifest.model.context
        parts = [lane_batch(self.text, self.manifest.seed, lane, round, step, spec.batch, context) for lane in lanes]
        return torch.cat(parts)

    def _runner(self) -> Callable[[Tensor], Tensor]:
        """What makes a step with tokens from the CPU."""
        if self.device.type == "cuda":
            return RecordedStep(self._update, self.device)
        return lambda tokens: self._update(tokens.to(self.device))

    def _update(self, tokens: Tensor) -> Tensor:
        """The device's part of a step: nothing in it waits for the CPU. The loss."""
        self.optimizer.zero_grad()
        loss = self._backward(tokens)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.manifest.method.clip)
        self.optimizer.step()
        return loss

    def _backward(self, tokens: Tensor) -> Tensor:
        """Gradients, added to those that there are; the loss."""
        with mixed_precision(self.device):
            loss = self.model.loss(tokens)
        torch.autograd.backward(loss)
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


def set_rate(optimizer: torch.optim.AdamW, lr: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr

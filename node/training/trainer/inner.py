"""Inner training: what one machine does between two averages. Used by workers and by the baselines.

The committed parameters are loaded at the start of each round. The optimizer's moments belong to the machine: they are
neither averaged nor reset (as in DiLoCo); `store` and `restore` let them survive the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.data.held_out import held_out_sequences
from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.methods.registry import timetable_of
from shoal.node.training.methods.schedule import rate
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build, kind_of
from shoal.node.training.trainer import inner_state
from shoal.node.training.trainer.device import mixed_precision
from shoal.node.training.trainer.evaluate import BATCH_TOKENS, SampleLoss, sample_loss
from shoal.node.training.trainer.optimizers import make_optimizers, set_rate
from shoal.node.training.trainer.stepper import Stepper


@dataclass(frozen=True, slots=True)
class InnerStep:
    """A finished inner step: its number in the round (from 1), its loss, and the round's tokens so far."""

    step: int
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class InnerRound:
    """The work of a round, or of a part of it: fewer steps than H if it was stopped early."""

    steps: int
    tokens: int
    loss: float  # mean over the steps

    def __add__(self, other: InnerRound) -> InnerRound:
        """The work of both, one after the other."""
        steps = self.steps + other.steps
        total = self.loss * self.steps + other.loss * other.steps
        return InnerRound(steps, self.tokens + other.tokens, total / max(1, steps))


NOTHING = InnerRound(steps=0, tokens=0, loss=0.0)


class InnerTrainer:
    """Trains a run's model with its optimizers and data, on one device."""

    def __init__(
        self,
        manifest: Manifest,
        corpus: Corpus,
        device: str = "cpu",
        options: TrainerOptions | None = None,
        peak: float | None = None,
    ) -> None:
        """`peak` is the device's speed in floating-point operations per second, for `flops_utilization`."""
        self.manifest = manifest
        self.text, self.stream, self.batches = corpus.train, corpus.stream, corpus.batches
        self.held_out = held_out_sequences(corpus, manifest.model.context, manifest.seed)
        self.device = torch.device(device)
        options = options or TrainerOptions()
        self.model: TrainedModel = build(manifest, options.folders).to(self.device)
        self.layout = Layout.of(self.model)
        self.timetable = timetable_of(manifest, self.layout)
        self.optimizers = make_optimizers(self.model, manifest.method, self.device)
        self.stepper = Stepper(self.model, self.optimizers, manifest.method.clip, self.device, options)
        self._peak = peak

    def load(self, theta: Tensor) -> None:
        """Sets the weights from a flat fp32 vector (d,)."""
        self.layout.load(theta, self.model)

    def read(self, out: Tensor | None = None) -> Tensor:
        """A copy of the weights as a flat vector (d,) on the CPU, in `out` if given."""
        return self.layout.read(self.model, out)

    def train(
        self,
        round: int,
        lanes: Sequence[int],
        keep_going: Callable[[InnerStep], bool] = lambda _: True,
        first: int = 0,
        steps: int | None = None,
    ) -> InnerRound:
        """Makes `steps` inner steps of a round, from its step `first` (from 0) on, on the joined batches of `lanes`.

        Without `steps`, it makes all that are left of the round. It stops early if `keep_going`, which is called after
        each step, returns False.
        """
        total, tokens, made = 0.0, 0, 0
        for step in range(first, first + (self.timetable.steps(round) - first if steps is None else steps)):
            loss, seen = self._step(round, step, lanes)
            total, tokens, made = total + loss, tokens + seen, made + 1
            if not keep_going(InnerStep(step + 1, loss, tokens)):
                break
        return InnerRound(made, tokens, total / made)

    def gradient(self, round: int, lanes: Sequence[int], first: int, out: Tensor) -> InnerStep:
        """Writes the gradient on the batch of inner step `first` to `out`, (d,); the weights are not changed."""
        tokens = self._batch(round, first, lanes)
        loss = self.stepper.gradient(tokens)
        gradients = {name: weight.grad for name, weight in self.model.trained() if weight.grad is not None}
        self.layout.pack(gradients, out)
        return InnerStep(first + 1, loss.item(), self._count(tokens))

    def validate(self, sequences: int, go_on: Callable[[], bool]) -> SampleLoss:
        """The loss on the first `sequences` of the held-out ones; training goes on as it would have without.

        It is broken off if `go_on`, which is called several times, returns False.
        """
        rows = self.held_out[:sequences]
        at_once = max(1, BATCH_TOKENS // self.manifest.model.context)
        fits = self.micro_batch or at_once  # in a step, which needs more memory for each
        with self.stepper.uncompiled(), mixed_precision(self.device):
            return sample_loss(self.model, rows, min(at_once, fits), go_on)

    def store(self, out: Tensor) -> None:
        """Writes the optimizers' state to a vector of `moments_size` numbers."""
        inner_state.store(self.optimizers, self.model, self.layout, out)

    def restore(self, vector: Tensor) -> None:
        """Continues with the optimizers' state of another process."""
        inner_state.restore(self.optimizers, self.model, self.layout, vector)
        self.stepper.begin_anew()  # a recorded step would use the state that was replaced

    @property
    def micro_batch(self) -> int:
        """How many sequences the last step has processed at once; 0 before the first step."""
        return self.stepper.micro_batch

    def flops_utilization(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilization of training at this speed; None if the device's peak is not known.

        It is the ratio of the operations that the model needs for these tokens and the device's peak (MFU; Chowdhery et
        al., PaLM, arXiv 2204.02311, appendix B). Recomputed activations do not count.
        """
        flops = kind_of(self.manifest.model).flops_per_token(self.manifest.model)
        return flops * tokens_per_second / self._peak if self._peak else None

    def _step(self, round: int, step: int, lanes: Sequence[int]) -> tuple[float, int]:
        """Makes one optimizer step; returns its loss and its tokens."""
        tokens, last = self._batch(round, step, lanes), self.manifest.rounds.last
        total = None if last is None else self.timetable.launch(last)
        lr = rate(self.manifest, self.timetable.launch(round - 1) + step, total)
        for optimizer in self.optimizers:
            set_rate(optimizer, lr)
        return self.stepper.step(tokens).item(), self._count(tokens)

    def _count(self, batch: Tensor) -> int:
        """The number of tokens of a batch; pixels count as tokens."""
        return batch.shape[0] * self.manifest.model.context

    def _batch(self, round: int, step: int, lanes: Sequence[int]) -> Tensor:
        """The tokens (lanes * batch, context + 1), or rows of pictures, of the round's inner step `step`, from 0."""
        spec, context = self.manifest.method, self.manifest.model.context
        seed, stream = self.manifest.seed, self.stream
        if self.batches is not None:
            parts = [self.batches.batch(seed, lane, round, step, spec.batch) for lane in lanes]
        elif stream is not None:
            parts = [stream.batch(seed, lane, round, spec.batch, context) for lane in lanes]
        else:
            parts = [lane_batch(self.text, seed, lane, round, step, spec.batch, context) for lane in lanes]
        return torch.cat(parts)

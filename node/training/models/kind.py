"""The interface of every kind of model: its tensors, how it is built and saved, and what a training step costs.

A kind's file is only imported for a run with such a model (registry.py), so it may need packages that others lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.tensors import Shapes, layer_of
from shoal.node.training.models.layout import trained


class TrainedModel(nn.Module):
    """A model in training. Its `trained` weights are those that its optimizer changes and members average."""

    can_be_recorded = True  # whether nothing in a step waits for the CPU, see node/training/trainer/recorded_step.py

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy, in nats, of all tokens (B, T + 1) except the first of each row, given those before."""
        raise NotImplementedError

    def arrange(self, options: TrainerOptions) -> None:
        """Calls the layers from now on as `options` ask: compiled, or with activations recomputed."""
        raise NotImplementedError

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained weights by their names in files; a tied weight occurs once."""
        return trained(self)

    def matrices(self) -> list[nn.Parameter]:
        """The trained weights that are matrices of layers; embedding and head are not among them."""
        return [weight for name, weight in self.trained() if layer_of(name) is not None and weight.ndim == 2]


class Kind(Protocol):
    """A kind of model. `spec` is the table `[model]` of a run; LocalError if this machine cannot do what is asked."""

    def shapes(self, spec: Any) -> Shapes:
        """Names and shapes of the trained tensors, in the order of the flat vector; quick, as no weights are made."""

    def build(self, spec: Any, seed: int, weights: Sequence[Path] = ()) -> TrainedModel:
        """The model on the CPU. `weights` are folders of this machine that may hold the frozen weights."""

    def flops_per_token(self, spec: Any) -> int:
        """Floating-point operations of training on one token, by a formula."""

    def write(self, spec: Any, parameters: Tensor, folder: Path) -> None:
        """Writes the model with these parameters (d,) to `folder`, for transformers or peft to open."""

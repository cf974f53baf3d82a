"""The one interface behind which each kind of model stands: what it is made of, how it is built, what a step costs.

A kind's file is imported when a run is about it (registry.py), and may import what others lack.
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
    """A causal language model in training. What its optimizer steps, and members average, are its `trained` weights."""

    can_be_recorded = True  # whether nothing in a step waits for the CPU, see recorded_step.py

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy in nats of each token of (B, T + 1) but the first, given those before it."""
        raise NotImplementedError

    def arrange(self, options: TrainerOptions) -> None:
        """From now on call the layers as `options` ask: compiled, or with activations recomputed."""
        raise NotImplementedError

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights that are trained, by the names that they have in files; a tied one once."""
        return trained(self)

    def matrices(self) -> list[nn.Parameter]:
        """Those of them that are matrices of layers: neither embedding nor head."""
        return [weight for name, weight in self.trained() if layer_of(name) is not None and weight.ndim == 2]


class Kind(Protocol):
    """A kind of model. `spec` is the table `[model]` of a run; LocalError where it cannot be served here."""

    def shapes(self, spec: Any) -> Shapes:
        """Names and shapes of what is trained, in the order of the flat vector; without numbers, and quickly."""
        ...

    def build(self, spec: Any, seed: int, weights: Sequence[Path] = ()) -> TrainedModel:
        """The model on the CPU. `weights` are folders of this machine in which frozen weights may lie."""
        ...

    def flops_per_token(self, spec: Any) -> int:
        """Floating-point operations of training on one token, by arithmetic."""
        ...

    def write(self, spec: Any, parameters: Tensor, folder: Path) -> None:
        """Write to `folder` the model with these parameters (d,) as transformers, or peft, opens it."""
        ...

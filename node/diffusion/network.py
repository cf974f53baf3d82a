"""The two networks of a family of pictures: the velocity of flow matching, and the router.

Both read a noisy picture x_t, its time t and a class through one kind of trunk: residual layers whose norms are scaled,
shifted and gated by time and class (adaLN-zero; DiT, arXiv 2212.09748). Class number `classes` stands for no class,
which guidance needs. No layer has a bias: one of the time's features is constant, which allows constant shifts.
Shapes: B pictures, P pixels, D width, F hidden, C classes, K experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.node.base.step_options import TrainerOptions
from shoal.node.diffusion.flow import between, velocity
from shoal.node.diffusion.pictures import unpack
from shoal.node.manifest.model import TIMES, FlowSpec, PictureSpec, RouterSpec
from shoal.node.manifest.tensors import Shapes
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.layers import CallLayer, call_layer, layer_call
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError

FASTEST = 100.0  # radians by which the fastest of the time's features turns between t = 0 and 1
ZERO = ("down.weight", "modulation.weight", "head.weight")  # so that at first layers add nothing, and the output is 0


def skeleton(spec: FlowSpec | RouterSpec) -> PictureModel:
    """The model on the meta device: names and shapes of its parameters only."""
    with torch.device("meta"):
        return Velocity(spec) if isinstance(spec, FlowSpec) else Router(spec)


def build(spec: FlowSpec | RouterSpec, seed: int) -> PictureModel:
    """The model on the CPU, initialised from `seed` to the same bits on every machine (see decoder.py)."""
    model = skeleton(spec)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(ZERO):
                weight.zero_()
                continue
            unit = torch.rand(weight.shape, generator=generator) - 0.5  # exact: multiples of 2**-24
            weight.copy_(unit * math.sqrt(12 / weight.shape[1]))
    return model


class PictureModel(TrainedModel):
    """A trunk over pictures, times and classes, and a head with `out` outputs."""

    def __init__(self, spec: PictureSpec, out: int) -> None:
        super().__init__()
        self.none = spec.classes  # the class that stands for no class
        self.trunk = Trunk(spec)
        self.head = nn.Linear(spec.width, out, bias=False)

    def forward(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        """(B, out) for pictures (B, P) at times (B,), of classes (B,)."""
        out: Tensor = self.head(F.rms_norm(self.trunk(x, t, classes), (self.trunk.width,)))
        return out

    def arrange(self, options: TrainerOptions) -> None:
        """See TrainedModel."""
        self.trunk.call_layer = layer_call(options)


class Velocity(PictureModel):
    """Predicts the velocity u(x_t, t, class), (B, P)."""

    def __init__(self, spec: FlowSpec) -> None:
        super().__init__(spec, spec.context)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean squared error of the velocity, on rows that pictures.py has packed."""
        rows = unpack(tokens)
        predicted = self(between(rows.x0, rows.noise, rows.t), rows.t, rows.classes)
        return F.mse_loss(predicted.float(), velocity(rows.x0, rows.noise))


class Router(PictureModel):
    """Predicts the logits, (B, K), of the posterior p(S_k | x_t, t, class)."""

    def __init__(self, spec: RouterSpec) -> None:
        super().__init__(spec, spec.experts)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of the cluster, in nats, on rows that pictures.py has packed."""
        rows = unpack(tokens)
        logits = self(between(rows.x0, rows.noise, rows.t), rows.t, rows.classes)
        return F.cross_entropy(logits.float(), rows.clusters)


class Trunk(nn.Module):
    """The embeddings and the layers."""

    def __init__(self, spec: PictureSpec) -> None:
        super().__init__()
        self.width = spec.width
        self.pixels = nn.Linear(spec.context, spec.width, bias=False)
        self.times = nn.Linear(TIMES, spec.width, bias=False)
        self.classes = nn.Embedding(spec.classes + 1, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.call_layer: CallLayer = call_layer  # until `arrange` chooses another

    def forward(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        condition = F.silu(self.times(time_features(t)) + self.classes(classes))  # (B, D)
        stream: Tensor = self.pixels(x)  # (B, D)
        for layer in self.layers:
            stream = self.call_layer(layer, stream, (condition, condition))
        return stream


class Layer(nn.Module):
    """A residual MLP on the normed, scaled and shifted stream, whose output is gated."""

    def __init__(self, spec: PictureSpec) -> None:
        super().__init__()
        self.modulation = nn.Linear(spec.width, 3 * spec.width, bias=False)
        self.up = nn.Linear(spec.width, spec.hidden, bias=False)
        self.down = nn.Linear(spec.hidden, spec.width, bias=False)

    def forward(self, x: Tensor, condition: tuple[Tensor, Tensor]) -> Tensor:
        scale, shift, gate = self.modulation(condition[0]).chunk(3, dim=-1)
        normed = F.rms_norm(x, (x.shape[-1],)) * (1 + scale) + shift
        out: Tensor = x + (1 + gate) * self.down(F.silu(self.up(normed)))
        return out  # (B, D)


def time_features(t: Tensor) -> Tensor:
    """Cosines and sines of times (B,) at frequencies from 0 to FASTEST: (B, TIMES)."""
    half = TIMES // 2
    speeds = torch.cat([torch.zeros(1), torch.logspace(0, math.log10(FASTEST), half - 1)]).to(t.device)
    angle = t[:, None] * speeds
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class PictureKind:
    """See kind.py. The weights follow from the seed, to the bit."""

    def shapes(self, spec: FlowSpec | RouterSpec) -> Shapes:
        """See kind.py."""
        return {place.name: place.shape for place in Layout.of(skeleton(spec))}

    def build(self, spec: FlowSpec | RouterSpec, seed: int, weights: Sequence[Path] = ()) -> PictureModel:
        """See kind.py."""
        return build(spec, seed)

    def flops_per_token(self, spec: FlowSpec | RouterSpec) -> int:
        """Each weight costs a multiplication and an addition once forward and twice backward, for each picture."""
        return 6 * spec.parameters // spec.context

    def write(self, spec: FlowSpec | RouterSpec, parameters: Tensor, folder: Path) -> NoReturn:
        """LocalError: transformers has no such model."""
        raise LocalError(
            "a model of pictures is none of transformers: `shoal serve` opens its checkpoints", code="model-unsupported"
        )

"""Velocities and routers of flow matching (node/diffusion/network.py), as kinds of models among others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from shoal.node.diffusion.network import PictureModel, build, skeleton
from shoal.node.spec.flow import FlowSpec, RouterSpec
from shoal.node.spec.tensors import Shapes
from shoal.node.state.layout import Layout
from shoal.protocol.errors import LocalError


class PictureKind:
    """See kind.py. The seed gives the weights, to the bit."""

    def shapes(self, spec: FlowSpec | RouterSpec) -> Shapes:
        """See kind.py."""
        return {place.name: place.shape for place in Layout.of(skeleton(spec))}

    def build(self, spec: FlowSpec | RouterSpec, seed: int, weights: Sequence[Path] = ()) -> PictureModel:
        """See kind.py."""
        return build(spec, seed)

    def flops_per_token(self, spec: FlowSpec | RouterSpec) -> int:
        """A weight is multiplied and added once forward and twice backward, for each picture."""
        return 6 * spec.parameters // spec.context

    def write(self, spec: FlowSpec | RouterSpec, parameters: Tensor, folder: Path) -> NoReturn:
        """LocalError: transformers has no such model."""
        raise LocalError("a model of pictures is none of transformers: `shoal serve` opens its checkpoints")

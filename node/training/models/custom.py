"""A module of somebody's own script: nodes keep and average its weights, and only the script can do more with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from shoal.node.manifest.model import CustomSpec
from shoal.node.manifest.tensors import Shapes, expand
from shoal.protocol.base.errors import LocalError


class CustomKind:
    """See kind.py."""

    def shapes(self, spec: CustomSpec) -> Shapes:
        """As the manifest has them."""
        return dict(expand(spec.tensors))

    def build(self, spec: CustomSpec, seed: int, weights: Sequence[Path] = ()) -> NoReturn:
        """LocalError: no code travels."""
        raise LocalError("only the script that made this run's model can build it: load its model.safetensors there")

    def flops_per_token(self, spec: CustomSpec) -> int:
        """Nobody knows."""
        return 0

    def write(self, spec: CustomSpec, parameters: Tensor, folder: Path) -> None:
        """LocalError, as `build`."""
        self.build(spec, 0)

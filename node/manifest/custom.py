"""A manifest's `[model]` of kind `custom`: a module of its members' own scripts (script/).

The manifest has names and shapes of its tensors only. No code is sent: every member has a script that makes the module.
The first weights are the founder's, and the origin of its run. Frozen weights are not exchanged: the manifest has their
hash, so that all members train on the same ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shoal.node.manifest.base import HexDigest, Spec
from shoal.node.manifest.tensors import TensorGroup, check_size, expand, layer_of, total


class CustomSpec(Spec):
    """Names and shapes of what is trained, in the order of the flat vector."""

    name: Literal["custom"]
    tensors: Annotated[tuple[TensorGroup, ...], Field(min_length=1)]
    frozen: HexDigest = ""  # of the parameters that are not trained (script/module.py); empty: there are none

    @model_validator(mode="after")
    def _can_be(self) -> CustomSpec:
        check_size(self.tensors)
        if not self.parameters:
            raise ValueError("a model has parameters")
        return self

    @property
    def is_complete(self) -> bool:
        """Whether the founder's node has nothing left to fill in."""
        return True

    def is_of(self, other: object) -> bool:
        """Whether this is `other` but for what was filled in."""
        return self == other

    @property
    def layers(self) -> int:
        """How many layers its tensors are of."""
        return len({layer_of(name) for name, _ in expand(self.tensors)} - {None})

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return total(self.tensors)

    @property
    def context(self) -> int:
        """Tokens of a sample: what a script counts are samples."""
        return 1

    @property
    def vocab(self) -> int:
        """Tokens that it knows: none, that anybody could name."""
        return 0

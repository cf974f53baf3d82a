"""The tables `[model]` of a run about pictures: a velocity of flow matching, or a router between experts of it.

- `flow`: what moves noise towards pictures of a class (node/diffusion/network.py).
- `router`: which cluster of the data lies behind a noisy picture (node/diffusion/network.py). It is the part
  `router` of a family whose experts are of `flow`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shoal.node.manifest.base import Spec

TIMES = 32  # numbers that a time becomes
DIGITS = (8, 10)  # pixels a side and classes of data.name = "digits"
PICTURES = ("flow", "router")  # kinds of models that learn from pictures


class PictureSpec(Spec):
    """What both have: square grey pictures of `classes`, and a trunk of residual layers."""

    side: Annotated[int, Field(ge=2, le=64)] = 8  # pixels
    classes: Annotated[int, Field(ge=1, le=1000)] = 10
    width: Annotated[int, Field(ge=8, le=8192)] = 128
    layers: Annotated[int, Field(ge=1, le=64)] = 3
    hidden: Annotated[int, Field(ge=8, le=32_768)] = 256

    @property
    def context(self) -> int:
        """Pixels of a picture: what is counted as tokens."""
        return self.side * self.side

    @property
    def vocab(self) -> int:
        """There are no tokens to be told apart."""
        return 0

    @property
    def is_complete(self) -> bool:
        """See ModelSpec."""
        return True

    def is_of(self, other: object) -> bool:
        """See ModelSpec."""
        return self == other

    @property
    def trunk(self) -> int:
        """Parameters of all but the head."""
        conditions = self.width * (TIMES + self.classes + 1)
        return self.context * self.width + conditions + self.layers * self.width * (2 * self.hidden + 3 * self.width)


class FlowSpec(PictureSpec):
    """A velocity."""

    name: Literal["flow"]

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return self.trunk + self.width * self.context


class RouterSpec(PictureSpec):
    """A router between so many experts."""

    name: Literal["router"]
    experts: Annotated[int, Field(ge=1, le=32)] = 8

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return self.trunk + self.width * self.experts

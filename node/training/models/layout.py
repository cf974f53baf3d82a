"""Where each named tensor lies in the flat fp32 vector that peers exchange.

The order is that of the model's parameters, without gaps. Every member derives the same layout from the manifest, so it
is never sent. Views share memory with the vector: writing to one writes to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from shoal.protocol.base.errors import LocalError


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's name, shape and half-open range in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def decays(shape: Sequence[int]) -> bool:
    """Whether weight decay applies to a tensor of this shape: not to the norms' gains, which have one dimension."""
    return len(shape) > 1


class Layout:
    """The places of all tensors, in the vector's order."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        places: list[Place] = []
        start = 0
        for name, shape in shapes.items():
            places.append(Place(name, shape, start, start + prod(shape)))
            start = places[-1].stop
        self.places = tuple(places)
        self.size = start

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model's trained parameters; a tied tensor has one place, under its first name."""
        return cls({name: tuple(weight.shape) for name, weight in trained(model)})

    @property
    def undecayed(self) -> tuple[tuple[int, int], ...]:
        """Half-open ranges of the numbers without weight decay, in order."""
        return tuple((place.start, place.stop) for place in self.places if not decays(place.shape))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The named tensors of `flat`, sharing its memory."""
        self._check(flat)
        return {place.name: flat[place.start : place.stop].view(place.shape) for place in self.places}

    def pack(self, named: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """The vector of the named tensors, in `out` if given; LocalError if they are not those of the layout."""
        if named.keys() != {place.name for place in self.places}:
            raise LocalError("these tensors are not those of the model", code="other-model")
        flat = torch.empty(self.size) if out is None else out
        for name, view in self.views(flat).items():
            if named[name].shape != view.shape:
                raise LocalError(
                    f"{name} has shape {tuple(named[name].shape)} instead of {tuple(view.shape)}", code="other-model"
                )
            view.copy_(named[name].detach())
        return flat

    def read(self, model: nn.Module, out: Tensor | None = None) -> Tensor:
        """A copy of the model's parameters as one vector on the CPU, in `out` if given."""
        return self.pack(dict(trained(model)), out)

    def load(self, flat: Tensor, model: nn.Module) -> None:
        """Copies the vector into the model's parameters, on any device."""
        views = self.views(flat)
        with torch.no_grad():
            for name, weight in trained(model):
                weight.copy_(views[name])

    def _check(self, flat: Tensor) -> None:
        if flat.dtype != torch.float32 or flat.shape != (self.size,):
            raise LocalError(
                f"expected {self.size} fp32 values, got {flat.dtype} of shape {tuple(flat.shape)}", code="bug"
            )

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """A model's parameters by name, in order, without frozen ones."""
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)

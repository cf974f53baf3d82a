"""Which numbers of the flat vector belong to which fragment (Streaming DiLoCo, arXiv 2501.18512: strided fragments).

Layer l is in fragment l mod P, so each fragment has early and late layers. Tensors outside of the layers (embeddings,
the last norm, the head) are the last fragment. With P = 1 the only fragment is the whole vector. A fragment is sent as
one vector of its numbers, in the order of the flat vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.manifest.tensors import layer_of
from shoal.node.training.models.layout import Layout, Place


@dataclass(frozen=True, slots=True)
class Fragment:
    """The numbers of a fragment as half-open ranges of the flat vector, in order; no two ranges touch."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(stop - start for start, stop in self.ranges)

    def take(self, flat: Tensor) -> Tensor:
        """A copy of the fragment's numbers, (k,), from a vector (d,)."""
        return torch.cat([flat[start:stop] for start, stop in self.ranges])

    def put(self, flat: Tensor, values: Tensor) -> Tensor:
        """A copy of `flat`, (d,), in which `values`, (k,), replace the fragment's numbers."""
        if values.shape != (self.size,):
            raise ValueError(f"a fragment of {self.size} numbers cannot hold a vector of shape {tuple(values.shape)}")
        new, start = flat.clone(), 0
        for first, last in self.ranges:
            new[first:last] = values[start : start + last - first]
            start += last - first
        return new


def fragments(layout: Layout, strides: int) -> tuple[Fragment, ...]:
    """The fragments, which together are the vector; `strides` is P. ValueError if one would have no layer."""
    if strides < 1:
        raise ValueError("a model is cut into one fragment or more")
    if strides == 1:
        return (Fragment(_merged(layout)),)
    layers = {layer for place in layout if (layer := layer_of(place.name)) is not None}
    if strides > len(layers):
        raise ValueError(f"{len(layers)} layers cannot be dealt out to {strides} fragments")
    dealt: list[list[Place]] = [[] for _ in range(strides + 1)]
    for place in layout:
        layer = layer_of(place.name)
        dealt[strides if layer is None else layer % strides].append(place)
    return tuple(Fragment(_merged(places)) for places in dealt if places)


def _merged(places: Iterable[Place]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for place in places:
        if ranges and ranges[-1][1] == place.start:
            ranges[-1] = (ranges[-1][0], place.stop)
        else:
            ranges.append((place.start, place.stop))
    return tuple(ranges)

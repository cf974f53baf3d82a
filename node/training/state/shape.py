"""The chunks of a run's committed state, which consists of its method's agreed vectors in fp32, and their root hash.

The chunks of `parameters` come first, then those of the other vectors, all cut alike. The root is the hash of a header,
which says what the numbers mean, and of the chunks' hashes in order. With the root, the list of hashes can be checked,
and with that list each chunk. The round is not part of the root: equal states have equal roots.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack
import torch

from shoal.node.manifest.manifest import Manifest
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.layout import Layout
from shoal.protocol.averaging.chunks import FLOAT_BYTES, chunk_bounds
from shoal.protocol.base.ids import Digest
from shoal.protocol.catchup.donor import state_root

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: a half-open range of numbers of one vector."""

    vector: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return (self.stop - self.start) * FLOAT_BYTES


class StateShape:
    """The chunks and the header of the state of a model with `layout`; `vectors` are the method's agreed vectors."""

    def __init__(self, layout: Layout, chunk_bytes: int, vectors: Sequence[str] = (PARAMETERS, MOMENTUM)) -> None:
        self.layout, self.vectors = layout, tuple(vectors)
        self.bounds = chunk_bounds(layout.size, chunk_bytes)
        self.chunks = tuple(Chunk(vector, *bound) for vector in vectors for bound in self.bounds)
        tensors = [[place.name, list(place.shape)] for place in layout]
        self.header: bytes = msgpack.packb([FORMAT, chunk_bytes, list(vectors), tensors])

    def touched(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """The indices, in order, of all vectors' chunks with numbers in `ranges`, which are half-open."""
        starts, count = [start for start, _ in self.bounds], len(self.bounds)
        found = {
            chunk
            for start, stop in ranges
            for chunk in range(bisect_right(starts, start) - 1, bisect_left(starts, stop))
        }
        return [vector * count + chunk for vector in range(len(self.vectors)) for chunk in sorted(found)]

    def root(self, hashes: Sequence[Digest]) -> Digest:
        """The root of a state whose chunks have these hashes."""
        return state_root(self.header, hashes)


def shape_of(manifest: Manifest, layout: Layout) -> StateShape:
    """The shape of the run's committed state."""
    agreed, _ = method_of(manifest, layout).begin(torch.empty(0))
    return StateShape(layout, manifest.rounds.state_chunk_bytes, tuple(agreed))

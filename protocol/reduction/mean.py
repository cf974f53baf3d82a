"""The weighted mean, chunk by chunk, in fp32.

Contributions are added in the order of the calls (the core calls in roster order) and the mean is encoded
once, so every member decodes the same bytes. Weights are taken relative to the first one: with equal weights,
the usual case, nothing is multiplied but by 1, and a single contribution comes back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.protocol.compression import Codec
from shoal.protocol.compression.base import is_finite
from shoal.protocol.errors import PayloadError


class MeanReducer:
    """A Reducer for tensors: `sizes` are the chunks' lengths in values."""

    def __init__(self, sizes: Sequence[int], scatter: Codec, gather: Codec) -> None:
        self._sizes = tuple(sizes)
        self._scatter = scatter
        self._gather = gather

    def open(self, chunk: int) -> MeanSum:
        """An empty sum for this chunk."""
        return MeanSum(self._sizes[chunk], self._scatter, self._gather)

    def check(self, chunk: int, payload: bytes) -> None:
        """PayloadError unless the payload can be decoded."""
        self._gather.decode(payload, self._sizes[chunk])


class MeanSum:
    """The mean of one chunk in the making."""

    def __init__(self, size: int, scatter: Codec, gather: Codec) -> None:
        self._total = torch.zeros(size)
        self._scatter = scatter
        self._gather = gather
        self._unit = 0  # the first weight that is not zero
        self._weight = 0

    def add(self, weight: int, payload: bytes) -> None:
        """Count one contribution; PayloadError leaves the sum as it was, also if the sum would overflow."""
        assert weight >= 0
        values = self._scatter.decode(payload, len(self._total))
        if weight == 0:
            return
        unit = self._unit or weight
        if weight != unit:
            values *= weight / unit
        values += self._total
        if not is_finite(values):
            raise PayloadError("a contribution so large that the sum overflows")
        self._total, self._unit = values, unit
        self._weight += weight

    def finish(self) -> bytes:
        """The mean so far, encoded; zeros if nothing with weight was added."""
        if not self._weight:
            return self._gather.encode(self._total)
        return self._gather.encode(self._total / (self._weight / self._unit))

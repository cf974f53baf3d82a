"""The weighted mean of a chunk's contributions, as its owner computes it, in fp32.

Contributions are added in the order of the calls (the core calls in roster order) and the mean is encoded
once, so every member decodes the same bytes. Weights are taken relative to the first one: with equal weights, the usual
case, values are multiplied by 1, and a single contribution comes back unchanged.

A payload is checked before it is counted, and added in place. Only if the sum might leave the range of fp32 is it
computed in a new vector, so that a contribution that overflows it can be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression import Codec, Payload
from shoal.protocol.tensors.compression.base import is_finite
from shoal.protocol.tensors.memory import MEMORY

SAFE = 2.0**127  # half of fp32's range: below it, no rounding of a sum reaches infinity


class MeanReducer:
    """A Reducer for tensors: `sizes` are the chunks' lengths in values."""

    def __init__(self, sizes: Sequence[int], scatter: Codec, gather: Codec) -> None:
        self._sizes = tuple(sizes)
        self._scatter = scatter
        self._gather = gather

    def open(self, chunk: int) -> MeanSum:
        """An empty sum for this chunk."""
        return MeanSum(self._sizes[chunk], self._scatter, self._gather)

    def fits(self, chunk: int, size: int) -> bool:
        """Whether a contribution to this chunk may have so many bytes."""
        return self._scatter.fits(size, self._sizes[chunk])

    def check(self, chunk: int, payload: Payload) -> None:
        """Raises PayloadError unless the payload is a valid mean of this chunk."""
        self._gather.peak(payload, self._sizes[chunk])


class MeanSum:
    """The weighted sum of a chunk's contributions so far."""

    def __init__(self, size: int, scatter: Codec, gather: Codec) -> None:
        self._size = size
        self._scatter = scatter
        self._gather = gather
        self._total: torch.Tensor | None = None  # None until a contribution with weight is added
        self._peak = 0.0  # a bound on the magnitudes in the sum
        self._unit = 0  # the first weight that is not zero
        self._weight = 0

    def add(self, weight: int, payload: Payload) -> None:
        """Add one contribution; PayloadError, also if the sum would overflow, leaves the sum as it was."""
        assert weight >= 0
        peak = self._scatter.peak(payload, self._size)
        if weight == 0:
            return
        if self._total is None:
            self._total = self._scatter.decode(payload, self._size, self._buffer())
            self._unit, self._peak = weight, peak
        else:
            share = weight / self._unit
            self._total = self._with(self._total, payload, share, self._peak + share * peak)
            self._peak += share * peak
        self._weight += weight

    def _with(self, total: torch.Tensor, payload: Payload, share: float, peak: float) -> torch.Tensor:
        """The sum with one more contribution; in place, unless it may overflow."""
        safe = peak < SAFE
        total = total if safe else total.clone()
        self._scatter.add(total, payload, share)
        if not safe and not is_finite(total):
            raise PayloadError("a contribution so large that the sum overflows")
        return total

    def finish(self) -> Payload:
        """The encoded mean; zeros if no contribution had weight. To be called last: it consumes the sum."""
        if self._total is None:
            return self._gather.encode(torch.zeros(self._size))
        mean, self._total = self._total.div_(self._weight / self._unit), None
        return self._gather.encode_view(mean)

    def _buffer(self) -> torch.Tensor:
        return torch.frombuffer(MEMORY.lend(4 * max(1, self._size)), dtype=torch.float32)[: self._size]

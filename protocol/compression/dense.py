"""What the dense codecs share: a codec says how one slab is read, and this decodes and adds slab by slab."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from shoal.protocol.compression.base import Copying, Payload
from shoal.protocol.compression.blocks import Slab, slabs, slabs_of


class Dense(Copying):
    """A codec that writes every value."""

    @abstractmethod
    def peak(self, payload: Payload, n: int) -> float:
        """See Codec."""

    @abstractmethod
    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """Write a slab's values to `out`; the payload, of `n` values, has been checked."""

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """The values, each within the codec's bound."""
        values = torch.empty(n) if out is None else out
        for slab in slabs(n):
            self.read(payload, n, slab, values[slab.values])
        return values

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """Add what `decode` would give, times the weight: each a multiplication, then an addition."""
        for slab, x, room in slabs_of(total):
            self.read(payload, len(total), slab, room.floats.view(-1))
            if weight != 1:
                room.floats.mul_(weight)
            x.add_(room.floats)

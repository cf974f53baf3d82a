"""What the sparse codecs share: a codec says which values it sends, and this puts them, or adds them, in their places.

Where nothing was sent, there is 0: the mean over all contributors counts those as zeros who did not send a value.
What is not sent is lost, unless its sender keeps it: see `feedback`.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from shoal.protocol.compression.base import Copying, Payload
from shoal.protocol.compression.blocks import Floats
from shoal.protocol.compression.selection import Places


class Sparse(Copying):
    """A codec that writes some of the values."""

    @abstractmethod
    def peak(self, payload: Payload, n: int) -> float:
        """See Codec."""

    @abstractmethod
    def entries(self, payload: Payload, n: int) -> tuple[Places, Floats]:
        """Where, each place once, and what; the payload, of `n` values, has been checked."""

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """Zeros, but for what was sent."""
        values = torch.zeros(n) if out is None else out.zero_()
        places, sent = self.entries(payload, n)
        values.numpy()[places] = sent
        return values

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """A multiplication and an addition for each value that was sent."""
        places, sent = self.entries(payload, len(total))
        with np.errstate(over="ignore"):  # whether a sum stays finite is its owner's question
            total.numpy()[places] += sent * np.float32(weight)

"""The lossless codec: IEEE 754 single precision, little endian. Denormals pass as they are."""

from __future__ import annotations

from math import isfinite

import numpy as np
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, divergence_error, is_finite, require_size
from shoal.protocol.tensors.compression.blocks import Dense, Floats, Slab
from shoal.protocol.tensors.memory import MEMORY

WIRE = np.dtype("<f4")


class Fp32(Dense):
    """Four bytes per value."""

    name = "fp32"
    block = 1

    def bytes_for(self, n: int) -> int:
        """4 n."""
        return WIRE.itemsize * n

    def encode(self, values: Tensor) -> Payload:
        """The values as they are."""
        if not is_finite(values):
            raise divergence_error()
        copy = MEMORY.lend(self.bytes_for(len(values)))
        copy[:] = self.encode_view(values)
        return copy.toreadonly()

    def encode_view(self, values: Tensor) -> Payload:
        """The values themselves."""
        return values.cpu().numpy().astype(WIRE, copy=False).view(np.uint8).data.toreadonly()

    def peak(self, payload: Payload, n: int) -> float:
        """The largest magnitude."""
        require_size(self, payload, n)
        if not n:
            return 0.0
        low, high = (float(each) for each in torch.from_numpy(_values(payload)).aminmax())  # NaN if there is one
        if not (isfinite(low) and isfinite(high)):
            raise PayloadError("fp32 payload holds NaN or Inf")
        return max(-low, high, 0.0)

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """The values as they were."""
        np.copyto(out.numpy(), _values(payload)[slab.values])

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """As Dense does; with a weight of 1 in one pass over the payload itself."""
        if weight != 1:
            super().add(total, payload, weight)
        else:
            with np.errstate(over="ignore"):  # the reducer checks whether the sum stays finite
                np.add(total.numpy(), _values(payload), out=total.numpy())


def _values(payload: Payload) -> Floats:
    return np.frombuffer(payload, WIRE)

"""The lossless codec: IEEE 754 single precision, little endian."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.protocol.compression.base import Payload, is_finite, require_finite, require_size
from shoal.protocol.errors import PayloadError

WIRE = np.dtype("<f4")


class Fp32:
    """Four bytes per value."""

    name = "fp32"
    block = 1

    def bytes_for(self, n: int) -> int:
        """4 n."""
        return WIRE.itemsize * n

    def encode(self, values: Tensor) -> bytes:
        """The values as they are."""
        require_finite(values)
        return values.numpy().astype(WIRE, copy=False).tobytes()

    def decode(self, payload: Payload, n: int) -> Tensor:
        """The values as they were."""
        require_size(self, payload, n)
        values = torch.from_numpy(np.frombuffer(payload, WIRE).astype(np.float32))  # the one copy
        if not is_finite(values):
            raise PayloadError("fp32 payload holds NaN or Inf")
        return values

"""bf16: the upper half of fp32, rounded to nearest, half to even (16 bits per value, little endian, no blocks).

    |x' - x| <= max(2**-8 |x|, 2**-126)       half a unit in the last of 8 bits

The second bound is that of processors whose bf16 has no denormals; others keep them. The range is fp32's: values that
would be rounded to infinity become the largest bf16 (within the same bound), NaN and Inf are refused on both sides.
Decoding moves bits and computes nothing, so it is the same everywhere; values with 8 bits or fewer are lossless.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, divergence_error, is_finite, require_size
from shoal.protocol.tensors.compression.blocks import Dense, Slab, readable

LARGEST = float(torch.finfo(torch.bfloat16).max)
SIGNLESS, BITS_INFINITY = 0x7FFF, 0x7F80


class Bf16(Dense):
    """Two bytes per value."""

    name = "bf16"
    block = 1

    def bytes_for(self, n: int) -> int:
        """2 n."""
        return 2 * n

    def encode(self, values: Tensor) -> Payload:
        """The values rounded."""
        rounded = values.to(torch.bfloat16)
        if not is_finite(rounded):  # either the values are not, or rounding has overflowed
            if not is_finite(values):
                raise divergence_error()
            rounded = values.clamp(-LARGEST, LARGEST).to(torch.bfloat16)
        return rounded.cpu().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()

    def peak(self, payload: Payload, n: int) -> float:
        """The largest magnitude."""
        require_size(self, payload, n)
        top = int((_upper(payload) & SIGNLESS).max(initial=0))
        if top >= BITS_INFINITY:
            raise PayloadError("bf16 payload holds NaN or Inf")
        return float(np.uint32(top << 16).view(np.float32))

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """The values as they were rounded."""
        part = _upper(payload)[slab.values].astype(np.uint16, copy=False)
        out.copy_(readable(part.view(np.int16)).view(torch.bfloat16))


def _upper(payload: Payload) -> npt.NDArray[np.uint16]:
    return np.frombuffer(payload, "<u2")

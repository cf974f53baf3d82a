"""Blockwise int8: each block of 1,024 values is scaled by its largest magnitude (8.03 bits per value).

A payload is the blocks' magnitudes in fp32, little endian, then one signed byte per value. With m the
magnitude of its block, x becomes the code round(127 (x / m)), half to even, and comes back as (code / 127) m:

    |x' - x| <= m / 254 * (1 + 2**-14)        half a step, and the roundings of the arithmetic itself

The values m, -m and 0 come back exactly, so constant blocks and blocks of one value are lossless. A block
with m < 2**-119 is sent as zeros (its error is at most m), because above that bound no result is denormal.
Nothing overflows: no intermediate exceeds max(m, 127). The code -128 and other magnitudes are never sent, and
refused.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.protocol.compression.base import Payload, require_finite, require_size
from shoal.protocol.errors import PayloadError

BLOCK = 1024
SLAB = 256 * BLOCK  # values worked on at a time, so that the temporaries stay in the cache
LEVELS = 127
STEP = 1 / LEVELS  # rounds to fp32 such that 127 * STEP is 1
SMALLEST = 2.0**-119  # > LEVELS * 2**-126, the smallest normal number


class Int8:
    """One byte per value and four per block."""

    name = "int8"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """n, and 4 per block begun."""
        return 4 * blocks(n) + n

    def encode(self, values: Tensor) -> bytes:
        """The blocks' magnitudes, then the codes."""
        require_finite(values)
        n = len(values)
        magnitudes = np.empty(blocks(n), "<f4")
        codes = np.empty(n, np.int8)
        for start in range(0, n, SLAB):
            stop = min(start + SLAB, n)
            scale, code = quantize(values[start:stop])
            magnitudes[start // BLOCK : blocks(stop)] = scale.numpy()
            codes[start:stop] = code.numpy()
        return magnitudes.tobytes() + codes.tobytes()

    def decode(self, payload: Payload, n: int) -> Tensor:
        """The values, each within the bound above."""
        require_size(self, payload, n)
        head = 4 * blocks(n)
        view = memoryview(payload)
        magnitudes = torch.from_numpy(np.frombuffer(view[:head], "<f4").astype(np.float32))
        codes = torch.from_numpy(np.frombuffer(view[head:], np.int8).copy())
        require_canonical(magnitudes, codes)
        values = torch.empty(n)
        for start in range(0, n, SLAB):
            stop = min(start + SLAB, n)
            scale = magnitudes[start // BLOCK : blocks(stop)]
            values[start:stop] = dequantize(scale, codes[start:stop])
        return values


def blocks(n: int) -> int:
    """How many blocks `n` values begin."""
    return -(-n // BLOCK)


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes (blocks,) and codes (n,) of at most a slab of values."""
    n = len(values)
    padded = torch.nn.functional.pad(values, (0, -n % BLOCK)).view(-1, BLOCK)
    scale = padded.abs().amax(dim=1)
    scale = torch.where(scale < SMALLEST, 0.0, scale)
    divisor = torch.where(scale == 0, torch.inf, scale)  # x / inf = 0: a zero block has zero codes
    codes = (padded / divisor[:, None]).mul_(LEVELS).round_().to(torch.int8)
    return scale, codes.view(-1)[:n]


def dequantize(scale: Tensor, codes: Tensor) -> Tensor:
    """The values (n,) of at most a slab of codes."""
    n = len(codes)
    padded = torch.nn.functional.pad(codes, (0, -n % BLOCK)).view(-1, BLOCK)
    return padded.to(torch.float32).mul_(STEP).mul_(scale[:, None]).view(-1)[:n]


def require_canonical(magnitudes: Tensor, codes: Tensor) -> None:
    """PayloadError unless `encode` can have made these."""
    fits = (magnitudes == 0) | ((magnitudes >= SMALLEST) & (magnitudes < torch.inf))  # NaN compares false
    if not bool(fits.all()):
        raise PayloadError("int8 payload with a magnitude that is NaN, infinite, negative or denormal")
    if len(codes) and int(codes.min()) < -LEVELS:
        raise PayloadError("int8 payload with the code -128")

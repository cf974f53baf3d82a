"""sign: one bit for each value, and the mean magnitude of each block of 1,024 (1.03 bits per value).

What 1-bit Adam sends (arXiv 2102.02888), with error feedback at the sender and at the owner. A payload is the blocks'
mean magnitudes in fp32, little endian, then one bit per value, 1 for a negative one, the first value's the lowest of
the first byte; bits left over are 0. With s the mean magnitude of its block and m the largest, x comes back as s or -s:

    |x' - x| = | |x| - s | <= m * (1 + 2**-23)

and of a block of d values with norms |x|_1 and |x|_2 the squares of the errors sum to |x|_2**2 - |x|_1**2 / d: they are
never more than the values'. Blocks of one magnitude are lossless. A block with s < 2**-126 is sent as zeros, so that
decoding, a multiplication by 1 or -1, meets no denormal. Other scales, and bits left over that are not 0, are refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, divergence_error, read_only, require_size
from shoal.protocol.tensors.compression.blocks import (
    BLOCK,
    Dense,
    Floats,
    Slab,
    bits_of,
    blocks,
    column,
    largest_scale,
    rows,
    slabs_of,
)

Bytes = npt.NDArray[np.uint8]

SMALLEST = 2.0**-126  # the smallest normal number
LEAST = bits_of(SMALLEST)


class Sign(Dense):
    """One bit per value and four bytes per block."""

    name = "sign"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """An eighth of n, rounded up, and 4 per block begun."""
        return 4 * blocks(n) + -(-n // 8)

    def encode(self, values: Tensor) -> Payload:
        """The blocks' mean magnitudes, then the signs."""
        n = len(values)
        payload = np.empty(self.bytes_for(n), np.uint8)
        scales, signs = _parts(payload, n)
        for slab, x, scratch in slabs_of(values):
            scales[slab.blocks] = mean_magnitudes(x, scratch.floats)
            signs[_bytes(slab)] = np.packbits((x < 0).cpu().numpy(), axis=None, bitorder="little")
        return read_only(payload)

    def peak(self, payload: Payload, n: int) -> float:
        """The largest of the means."""
        require_size(self, payload, n)
        scales, signs = _parts(payload, n)
        top = largest_scale(self.name, scales, LEAST)
        if n % 8 and signs[-1] >> n % 8:
            raise PayloadError("sign payload with bits left over that are not 0")
        return top

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """s or -s."""
        scales, signs = _parts(payload, n)
        eights = np.take(UNPACKED, signs[_bytes(slab)], axis=0)
        np.copyto(out.numpy(), eights.reshape(-1)[: slab.size])
        rows(out).mul_(column(scales[slab.blocks].copy(), out))


def mean_magnitudes(x: Tensor, scratch: Tensor) -> Floats:
    """Of each row; 0 if it is not a normal number. LocalError if a value is NaN or infinite."""
    sums = torch.abs(x, out=scratch).sum(dim=1, dtype=torch.float64)  # that of equal magnitudes is exact
    found: Floats = (sums / x.shape[1]).cpu().numpy().astype(np.float32)
    if not np.maximum.reduce(found) < np.inf:
        raise divergence_error()
    found[found < SMALLEST] = 0
    return found


def _bytes(slab: Slab) -> slice:
    return slice(slab.values.start // 8, -(-slab.values.stop // 8))


def _parts(payload: Payload | Bytes, n: int) -> tuple[Floats, Bytes]:
    head = 4 * blocks(n)
    return np.frombuffer(payload, "<f4", blocks(n)), np.frombuffer(payload, np.uint8, -(-n // 8), head)


BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
UNPACKED = 1 - 2 * BITS.astype(np.float32)  # for each byte, eight signs

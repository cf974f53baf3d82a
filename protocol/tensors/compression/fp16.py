"""fp16 with a power of two for each block of 1,024 values (16.02 bits per value).

Plain half precision cannot write values above 65,504 and loses small ones: of a change of 1e-6 it keeps four bits.
So each block is first scaled into its range. A payload is one exponent per block (int16, little endian), then IEEE
754 half precision values. With 2**k the power of two at or below the block's largest magnitude m, at least 2**-88, x is
written as the half nearest to x 2**(14 - k), half to even:

    |x' - x| <= max(2**-11 |x|, 2**-39 m, 2**-127)       half a unit of a normal half, of a denormal one, of k = -88

Multiplying by a power of two is exact, and no result is denormal. Constant blocks whose value has at most 11 bits, and
zeros, are lossless. The values next to fp32's largest, which would be rounded to infinity, are cut to the largest half
below (within the same bound). Each block has one canonical form; every other is refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, read_only, require_size
from shoal.protocol.tensors.compression.blocks import (
    BLOCK,
    Dense,
    Floats,
    Slab,
    blocks,
    column,
    magnitudes,
    readable,
    rows,
    slabs,
    slabs_of,
)

Halves = npt.NDArray[np.uint16]
Exponents = npt.NDArray[np.int16]

TOP = 14  # a block's largest magnitude is written as 2**14 or more, and at most 2**15
LOWEST, HIGHEST = -88, 127  # of k: the smallest half, 2**-24, becomes 2**-126
LARGEST = 32752.0  # the largest half below 2**15
SIGNLESS = 0x7FFF
BITS_LOW, BITS_LARGEST, BITS_HIGH = 0x7400, 0x77FF, 0x7800  # 2**14, LARGEST, 2**15


class Fp16(Dense):
    """Two bytes per value and two per block."""

    name = "fp16"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """2 n, and 2 per block begun."""
        return 2 * blocks(n) + 2 * n

    def encode(self, values: Tensor) -> Payload:
        """The blocks' exponents, then the halves."""
        n = len(values)
        payload = np.empty(self.bytes_for(n), np.uint8)
        exponents, halves = _parts(payload, n)
        written = torch.from_numpy(halves.view(np.float16))
        for slab, x, scratch in slabs_of(values):
            k = floor_log2(magnitudes(x))
            torch.mul(x, column(np.ldexp(np.float32(1), TOP - k), x), out=scratch.floats)
            if k.max() == HIGHEST:
                scratch.floats.clamp_(-LARGEST, LARGEST)
            exponents[slab.blocks] = k
            rows(written[slab.values]).copy_(scratch.floats)
        return read_only(payload)

    def peak(self, payload: Payload, n: int) -> float:
        """The power of two above the largest magnitude."""
        require_size(self, payload, n)
        exponents, halves = _parts(payload, n)
        if not ((exponents >= LOWEST) & (exponents <= HIGHEST)).all():
            raise PayloadError("fp16 payload with an exponent that no block has")
        for slab in slabs(n):
            if not _are_canonical(exponents[slab.blocks], halves[slab.values]):
                raise PayloadError("fp16 payload with a block that is not scaled as it should be, or not finite")
        return float(2.0 ** (float(exponents.max(initial=LOWEST)) + 1))

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """half 2**(k - 14)."""
        exponents, halves = _parts(payload, n)
        out.copy_(readable(halves[slab.values].view(np.float16)))
        scales = np.ldexp(np.float32(1), exponents[slab.blocks].astype(np.int32) - TOP)
        rows(out).mul_(column(scales, out))


def floor_log2(scales: Floats) -> npt.NDArray[np.int32]:
    """The exponent k of each magnitude; LOWEST for 0."""
    exponents: npt.NDArray[np.int32] = np.frexp(scales)[1] - 1
    exponents[scales < 2.0**LOWEST] = LOWEST
    return exponents


def _are_canonical(exponents: Exponents, halves: Halves) -> bool:
    """Whether each block's largest magnitude is in the range that its exponent demands."""
    top = (halves & SIGNLESS).reshape(-1, min(len(halves), BLOCK)).max(axis=1)
    low = np.where(exponents == LOWEST, 0, BITS_LOW)
    high = np.where(exponents == HIGHEST, BITS_LARGEST, BITS_HIGH)
    return bool(((top >= low) & (top <= high)).all())


def _parts(payload: Payload | npt.NDArray[np.uint8], n: int) -> tuple[Exponents, Halves]:
    head = 2 * blocks(n)
    return np.frombuffer(payload, "<i2", blocks(n)), np.frombuffer(payload, "<u2", n, head)

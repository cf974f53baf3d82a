"""Blockwise int8: each block of 1,024 values is scaled by its largest magnitude (8.03 bits per value).

A payload is the blocks' magnitudes in fp32, little endian, then one signed byte per value. With m the
magnitude of its block, x becomes the code round(x (127 / m)), half to even, and comes back as (code / 127) m:

    |x' - x| <= m / 254 * (1 + 2**-13)        half a step, and the roundings of the arithmetic itself

The values m, -m and 0 come back exactly, so constant blocks and blocks of one value are lossless. A block
with m < 2**-119 is sent as zeros (its error is at most m), because above that bound no result is denormal.
Nothing overflows: no intermediate exceeds max(m, 2**24). The code -128 and other magnitudes are never sent, and
refused. `add` multiplies once, by a step that it rounds beforehand: its values keep the bound, and may differ from
those of `decode` in the last place.
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
    Scratch,
    Slab,
    bits_of,
    blocks,
    column,
    factors,
    largest_scale,
    magnitudes,
    readable,
    rows,
    slabs_of,
)

LEVELS = 127
STEP = np.float32(1 / LEVELS)  # such that 127 * STEP is 1
SMALLEST = 2.0**-119  # > LEVELS * 2**-126, the smallest normal number
LEAST = bits_of(SMALLEST)
ROUNDING = torch.full((1, BLOCK), 1.5 * 2.0**23)  # added, it leaves the nearest integer in the lowest bits


class Int8(Dense):
    """One byte per value and four per block."""

    name = "int8"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """n, and 4 per block begun."""
        return 4 * blocks(n) + n

    def encode(self, values: Tensor) -> Payload:
        """The blocks' magnitudes, then the codes."""
        n = len(values)
        payload = np.empty(self.bytes_for(n), np.uint8)
        scales, codes = _parts(payload, n)
        for slab, x, scratch in slabs_of(values):
            scale = magnitudes(x, SMALLEST)
            scales[slab.blocks] = scale
            written = torch.from_numpy(codes[slab.values].reshape(x.shape))
            written.copy_(quantize(x, scale, scratch))
        return read_only(payload)

    def peak(self, payload: Payload, n: int) -> float:
        """The largest of the magnitudes."""
        require_size(self, payload, n)
        scales, codes = _parts(payload, n)
        top = largest_scale(self.name, scales, LEAST)
        if n and np.minimum.reduce(codes) < -LEVELS:
            raise PayloadError("int8 payload with the code -128")
        return top

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """(code / 127) m."""
        scales, codes = _parts(payload, n)
        out.copy_(readable(codes[slab.values]))
        out.mul_(float(STEP))
        rows(out).mul_(column(scales[slab.blocks].copy(), out))

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """code (m / 127 times the weight)."""
        scales, codes = _parts(payload, len(total))
        steps = scales * STEP
        if weight != 1:
            with np.errstate(over="ignore"):  # the reducer checks whether the sum stays finite
                steps *= np.float32(weight)
        for slab, x, scratch in slabs_of(total):
            scratch.floats.copy_(readable(codes[slab.values].reshape(x.shape)))
            x.addcmul_(scratch.floats, column(steps[slab.blocks], x))


def quantize(x: Tensor, scale: Floats, scratch: Scratch) -> Tensor:
    """The codes in the lowest bytes of int32, in `scratch`; zeros in a row of scale 0."""
    rounding = ROUNDING if x.shape[1] == BLOCK else ROUNDING[:, : x.shape[1]]
    torch.addcmul(rounding.to(x.device), x, column(factors(LEVELS, scale), x), out=scratch.floats)
    return scratch.integers


def _parts(payload: Payload | npt.NDArray[np.uint8], n: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    head = 4 * blocks(n)
    return np.frombuffer(payload, "<f4", blocks(n)), np.frombuffer(payload, np.int8, n, head)

"""fp4 E3M0: one sign and three bits of exponent, scaled by each block of 1,024 values (4.03 bits per value).

Streaming DiLoCo (arXiv 2501.18512) sends its outer gradients in this format; scale and zero are our own. A payload is
the blocks' largest magnitudes in fp32, little endian, then two codes per byte, the first value's in the lower half;
if n is odd, the last half is 0. With s the magnitude of its block, x becomes the nearest of 0 and
s 2**-6, s 2**-5, ... s 2**0, with its sign; from half-way, the smaller one:

    |x' - x| <= max(|x| / 3, s / 128) * (1 + 2**-18)

The first is the error half-way between two powers of two, the second half-way between 0 and the smallest. s, its halves
down to s / 64 and 0 come back exactly, so constant blocks are lossless. A block with s < 2**-120 is sent as zeros (its
error is at most s), because above that bound no result is denormal. Multiplying by a power of two is exact.
The code of a negative zero and other scales are never sent, and refused.
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
    rows,
    slabs_of,
)

Bytes = npt.NDArray[np.uint8]

SMALLEST = 2.0**-120  # 2**6 * 2**-126, the smallest normal number
LEAST = bits_of(SMALLEST)
STEPS = 128 * (1 - 2.0**-20)  # truncated, s becomes 127, and a half-way point the step below it
FIRST = (1, 3, 6, 12, 24, 48, 96)  # the steps at which the codes 1 to 7 begin


class Fp4(Dense):
    """Half a byte per value and four per block."""

    name = "fp4"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """Half of n, rounded up, and 4 per block begun."""
        return 4 * blocks(n) + -(-n // 2)

    def encode(self, values: Tensor) -> Payload:
        """The blocks' magnitudes, then the codes."""
        n = len(values)
        payload = np.empty(self.bytes_for(n), np.uint8)
        scales, codes = _parts(payload, n)
        for slab, x, scratch in slabs_of(values):
            scale = magnitudes(x, SMALLEST)
            scales[slab.blocks] = scale
            codes[_pairs(slab)] = pack(quantize(x, scale, scratch))
        return read_only(payload)

    def peak(self, payload: Payload, n: int) -> float:
        """The largest of the magnitudes."""
        require_size(self, payload, n)
        scales, codes = _parts(payload, n)
        top = largest_scale(self.name, scales, LEAST)
        if _has_negative_zero(codes) or (n % 2 and codes[-1] > 0xF):
            raise PayloadError("fp4 payload with a code that is never sent")
        return top

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """2**(code - 7) s."""
        scales, codes = _parts(payload, n)
        pairs = np.take(UNPACKED, codes[_pairs(slab)])
        np.copyto(out.numpy(), pairs.view(np.float32)[: slab.size])
        rows(out).mul_(column(scales[slab.blocks].copy(), out))


def quantize(x: Tensor, scale: Floats, scratch: Scratch) -> npt.NDArray[np.int8]:
    """Each value in steps of s / 128, truncated; zeros in a row of scale 0. Padded with a 0 if n is odd."""
    torch.mul(x, column(factors(STEPS, scale), x), out=scratch.floats)
    steps = np.zeros(x.numel() + x.numel() % 2, np.int8)
    torch.from_numpy(steps)[: x.numel()].copy_(scratch.floats.view(-1))
    return steps


def pack(steps: npt.NDArray[np.int8]) -> Bytes:
    """The codes of an even number of values."""
    packed: Bytes = np.take(PACKED, steps.view("<u2"))
    return packed


def _code_of_steps() -> Bytes:
    """The code of each signed number of steps, indexed by its byte."""
    steps = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int16)
    sizes = np.searchsorted(FIRST, np.abs(steps), side="right")
    return np.where((steps < 0) & (sizes > 0), sizes + 8, sizes).astype(np.uint8)


def _value_of_code() -> Floats:
    """The value of each code in a block of scale 1."""
    sizes = np.array([0, *(2.0 ** (code - 7) for code in range(1, 8))], np.float32)
    return np.concatenate((sizes, -sizes))


def _has_negative_zero(codes: Bytes) -> bool:
    """Whether a half byte is 8: subtracting 1 from each half borrows its highest bit only where that half is 0."""
    zero = codes ^ np.uint8(0x88)
    return bool(((zero - np.uint8(0x11)) & ~zero & np.uint8(0x88)).any())


def _pairs(slab: Slab) -> slice:
    return slice(slab.values.start // 2, -(-slab.values.stop // 2))


def _parts(payload: Payload | Bytes, n: int) -> tuple[Floats, Bytes]:
    head = 4 * blocks(n)
    return np.frombuffer(payload, "<f4", blocks(n)), np.frombuffer(payload, np.uint8, -(-n // 2), head)


CODES = _code_of_steps()
PACKED = (CODES[None, :] | CODES[:, None] << 4).ravel()  # the byte of two values, by both bytes of steps
VALUES = _value_of_code()
UNPACKED = np.stack((np.tile(VALUES, 16), np.repeat(VALUES, 16)), axis=1).view(np.complex64).ravel()  # two as one item

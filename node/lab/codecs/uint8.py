"""uint8 with a table of means: each block of 65,536 values is cut into 256 equal buckets (8.13 bits per value).

A payload is each block's table, 256 means in fp32, little endian, then one byte per value. The buckets divide the range
from the block's smallest value to its largest, and x comes back as the mean of all that are in its bucket:

    |x' - x| <= (largest - smallest) / 256 * (1 + 2**-13)

Two values of one bucket are no further apart, and their mean is between them. Unlike int8 this does not need values
around zero, and it keeps sums: the mean of a block comes back but for roundings. It takes longer to encode. A bucket of
equal values is lossless, so constant blocks are, and blocks of 0 and one other value. A block whose range is below
2**-117 is one bucket. A bucket without values repeats the mean below it, so tables never fall; one that falls, or holds
NaN or Inf, is refused. Decoding looks up and computes nothing: denormals pass as they are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, divergence_error, is_finite, read_only, require_size
from shoal.protocol.tensors.compression.blocks import Dense, Floats, Slab

Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 16
LEVELS = 256
TABLE = 4 * LEVELS  # bytes
NARROWEST = 2.0**-117  # of ranges; LEVELS / this is still finite
INSIDE = LEVELS * (1 - 2.0**-20)  # so that the largest value is in the last bucket, not behind it


class Uint8(Dense):
    """One byte per value and 1,024 per block."""

    name = "uint8"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """n, and 1,024 per block begun."""
        return TABLE * _blocks(n) + n

    def encode(self, values: Tensor) -> Payload:
        """The blocks' tables, then the buckets."""
        values = values.cpu()
        if not is_finite(values):
            raise divergence_error()
        n = len(values)
        payload = np.empty(self.bytes_for(n), np.uint8)
        tables, codes = _parts(payload, n)
        for table, start in zip(tables, range(0, n, BLOCK), strict=True):
            part = values[start : start + BLOCK]
            codes[start : start + BLOCK] = found = buckets(part)
            table[:] = means(part.numpy(), found)
        return read_only(payload)

    def peak(self, payload: Payload, n: int) -> float:
        """The largest magnitude in the tables."""
        require_size(self, payload, n)
        tables, _ = _parts(payload, n)
        if not np.isfinite(tables).all():
            raise PayloadError("uint8 payload with NaN or Inf in its table")
        if not (tables[:, 1:] >= tables[:, :-1]).all():
            raise PayloadError("uint8 payload with a table that falls")
        return float(np.abs(tables[:, [0, -1]]).max(initial=0))

    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """The mean of each value's bucket."""
        tables, codes = _parts(payload, n)
        values, first = out.numpy(), slab.values.start
        while first < slab.values.stop:
            last = min(slab.values.stop, (first // BLOCK + 1) * BLOCK)
            part = values[first - slab.values.start : last - slab.values.start]
            np.take(tables[first // BLOCK], codes[first:last], out=part, mode="clip")
            first = last


def buckets(values: Tensor) -> Bytes:
    """The bucket of each value of a block."""
    low, high = (float(each) for each in values.aminmax())
    if high - low < NARROWEST:
        return np.zeros(len(values), np.uint8)
    half = 0.5 if high - low > torch.finfo(torch.float32).max else 1.0  # so that the range fits into fp32
    offsets = (values * half).sub_(low * half).mul_(INSIDE / (high - low) / half)
    # torch turns fp32 into int8 several times faster than into uint8
    codes = offsets.sub_(LEVELS // 2).floor_().to(torch.int8).numpy()
    return codes.view(np.uint8) ^ np.uint8(LEVELS // 2)


def means(values: Floats, codes: Bytes) -> Floats:
    """The mean of each bucket; that of the bucket below where there are no values."""
    counts = np.bincount(codes, minlength=LEVELS)
    sums = np.bincount(codes, weights=values, minlength=LEVELS)
    filled = np.divide(sums, counts, out=np.full(LEVELS, -np.inf), where=counts > 0)
    table: Floats = np.maximum.accumulate(filled).astype(np.float32)
    return table


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _parts(payload: Payload | Bytes, n: int) -> tuple[Floats, Bytes]:
    head = TABLE * _blocks(n)
    tables = np.frombuffer(payload, "<f4", head // 4).reshape(-1, LEVELS)
    return tables, np.frombuffer(payload, np.uint8, n, head)

"""Dense codecs, and slabs: pieces of a vector that stay in the cache, as matrices with one block per row.

A block is 1,024 values. `Dense` is the base of codecs that write every value: each defines how one slab is read.

Each pass over a slab finds it in the cache from the pass before; passes over whole vectors would go to memory each
time. A slab is as long as a usual chunk, because a call of torch costs as much as some 30,000 values: the data of each
pass evict the code of the next call. So there are few calls, and small arrays are numpy's. The working memory
(`Scratch`) of one slab is reused by the next call: otherwise the allocator returns its pages to the kernel after each
chunk and faults them in for the next, which can take longer than the arithmetic. There are as many working memories as
threads were ever computing at once; taking one is atomic.

If the last block of a vector is not whole, it is a slab of its own, with one short row.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Codec, Payload, divergence_error

Floats = npt.NDArray[np.float32]

BLOCK = 1024
SLAB = 256 * BLOCK
SCRATCHES: list[Scratch] = []  # those not in use: one slab each, on the CPU
INFINITY = 0x7F800000  # its bits in fp32; greater ones, without the sign, are NaN


class Slab(NamedTuple):
    """A slab of a vector, as a range of its values and of its blocks."""

    values: slice
    blocks: slice

    @property
    def size(self) -> int:
        """The number of values."""
        size: int = self.values.stop - self.values.start
        return size


class Scratch(NamedTuple):
    """Working memory for one slab, one block per row: the same memory as floats and as integers."""

    floats: Tensor
    integers: Tensor

    @classmethod
    def of(cls, blocks: int, device: torch.device) -> Scratch:
        """New working memory for so many blocks."""
        return cls._from(torch.empty((blocks, BLOCK), device=device))

    @classmethod
    def _from(cls, floats: Tensor) -> Scratch:
        return cls(floats, floats.view(torch.int32))

    def shaped(self, like: Tensor) -> Scratch:
        """The beginning of it, in the shape of `like`."""
        if like.shape == self.floats.shape:
            return self
        return self._from(self.floats.view(-1)[: like.numel()].view(like.shape))


def blocks(n: int) -> int:
    """How many blocks `n` values fill or begin."""
    return -(-n // BLOCK)


def slabs(n: int, size: int = SLAB) -> Iterator[Slab]:
    """The slabs of `n` values, in order; `size` is a multiple of a block."""
    whole = n - n % BLOCK
    for start in range(0, whole, size):
        stop = min(start + size, whole)
        yield Slab(slice(start, stop), slice(start // BLOCK, stop // BLOCK))
    if whole < n:
        yield Slab(slice(whole, n), slice(whole // BLOCK, blocks(n)))


def slabs_of(values: Tensor) -> Iterator[tuple[Slab, Tensor, Scratch]]:
    """Each slab of `values`, its values as rows, and working memory; on a GPU, whose calls cost more, one."""
    if values.device.type != "cpu":
        yield from _in_scratch(values, Scratch.of(max(1, blocks(len(values))), values.device))
        return
    scratch = SCRATCHES.pop() if SCRATCHES else Scratch.of(SLAB // BLOCK, values.device)
    try:
        yield from _in_scratch(values, scratch)
    finally:
        SCRATCHES.append(scratch)


def _in_scratch(values: Tensor, scratch: Scratch) -> Iterator[tuple[Slab, Tensor, Scratch]]:
    if len(values) == SLAB:  # the usual chunk, without needless calls
        yield WHOLE, values.view(-1, BLOCK), scratch
        return
    for slab in slabs(len(values), scratch.floats.numel()):
        x = rows(values[slab.values])
        yield slab, x, scratch.shaped(x)


def rows(slab: Tensor) -> Tensor:
    """A slab's values as a matrix of blocks, in the same memory."""
    return slab.view(-1, min(len(slab), BLOCK))


def magnitudes(x: Tensor, smallest: float = 0) -> Floats:
    """The largest magnitude of each row, 0 if it is below `smallest`; raises LocalError for NaN and infinity."""
    high, low = x.amax(dim=1), x.amin(dim=1)  # NaN if there is one; |x| would have to be written and read again
    found: Floats = np.maximum(np.abs(high.cpu().numpy()), np.abs(low.cpu().numpy()))
    if not np.maximum.reduce(found) < np.inf:
        raise divergence_error()
    if np.minimum.reduce(found) < smallest:
        found[found < smallest] = 0
    return found


def readable(array: npt.NDArray[Any]) -> Tensor:
    """A payload's memory as a tensor, to read from; torch converts faster than numpy."""
    return torch.from_numpy(array)


def column(scales: Floats, like: Tensor) -> Tensor:
    """Factors for the rows of `like`, as a column; `scales` must not be the memory of a payload."""
    return torch.from_numpy(scales[:, None]).to(like.device)


def factors(levels: float, scales: Floats) -> Floats:
    """levels / scale for each scale, and 0 for a scale of 0."""
    if np.minimum.reduce(scales) > 0:
        return levels / scales
    quotients: Floats = np.divide(levels, scales, out=np.zeros_like(scales), where=scales > 0)
    return quotients


def bits_of(number: float) -> int:
    """The bits of an fp32 number; for numbers that are not negative their order is that of the numbers."""
    return int(np.float32(number).view(np.uint32))


def largest_scale(codec: str, scales: Floats, least: int) -> float:
    """The largest of a payload's scales; PayloadError unless each is +0, or finite with bits of at least `least`."""
    if not len(scales):
        return 0
    bits = scales.view(np.uint32)  # comparing NaN itself would warn
    top = np.maximum.reduce(bits)
    if top >= INFINITY or (np.minimum.reduce(bits) < least and not ((bits == 0) | (bits >= least)).all()):
        raise PayloadError(f"{codec} payload with a magnitude that is NaN, infinite, negative or denormal")
    return float(top.view(np.float32))


class Dense(Codec):
    """A codec that writes every value."""

    @abstractmethod
    def read(self, payload: Payload, n: int, slab: Slab, out: Tensor) -> None:
        """Write a slab's values to `out`; the payload, of `n` values, has been checked."""

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """The values, each within the codec's bound."""
        values = torch.empty(n) if out is None else out
        for slab in slabs(n):
            self.read(payload, n, slab, values[slab.values])
        return values

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """Add what `decode` would give, times the weight: each a multiplication, then an addition."""
        for slab, x, scratch in slabs_of(total):
            self.read(payload, len(total), slab, scratch.floats.view(-1))
            if weight != 1:
                scratch.floats.mul_(weight)
            x.add_(scratch.floats)


with warnings.catch_warnings():  # torch warns once per process of read-only memory, which nobody writes to
    warnings.simplefilter("ignore")
    readable(np.frombuffer(b"\0", np.uint8))

WHOLE = Slab(slice(0, SLAB), slice(0, SLAB // BLOCK))

"""How a vector is worked on: in slabs that stay in the cache, each a matrix with a block of 1,024 values per row.

A pass over a slab reads what the pass before has left in the cache; whole vectors would go to memory and back each
time. A slab is as long as a chunk usually is, because a call of torch costs as much as some 30,000 values. The room to
compute in, of one slab, is used again by the next call: else the allocator gives its pages back to the kernel after
each chunk and faults them in for the next, which can take longer than the arithmetic. There are as many rooms as
threads were ever at work at once; taking one is atomic.

The last values of a vector that are not a whole block are a slab of their own, of one short row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.compression.base import diverged

Floats = npt.NDArray[np.float32]

BLOCK = 1024
SLAB = 256 * BLOCK
ROOMS: list[Tensor] = []  # that nobody computes in
INFINITY = 0x7F800000  # the bits of it in fp32; those of greater magnitude are NaN's


@dataclass(frozen=True, slots=True)
class Slab:
    """Which values, and which blocks these are."""

    values: slice
    blocks: slice

    @property
    def size(self) -> int:
        """In values."""
        size: int = self.values.stop - self.values.start
        return size


def blocks(n: int) -> int:
    """How many blocks `n` values begin."""
    return -(-n // BLOCK)


def slabs(n: int, size: int = SLAB) -> Iterator[Slab]:
    """The slabs of `n` values, in order; `size` is a multiple of a block."""
    whole = n - n % BLOCK
    for start in range(0, whole, size):
        stop = min(start + size, whole)
        yield Slab(slice(start, stop), slice(start // BLOCK, stop // BLOCK))
    if whole < n:
        yield Slab(slice(whole, n), slice(whole // BLOCK, blocks(n)))


def slabs_of(values: Tensor) -> Iterator[tuple[Slab, Tensor, Tensor]]:
    """Its slabs, their values as rows, and as much room to compute in; on a GPU, whose calls cost more, the largest."""
    size = SLAB if values.device.type == "cpu" else max(SLAB, blocks(len(values)) * BLOCK)
    room = ROOMS.pop() if ROOMS and values.device.type == "cpu" else torch.empty(size, device=values.device)
    try:
        for slab in slabs(len(values), size):
            yield slab, rows(values[slab.values]), rows(room[: slab.size])
    finally:
        if values.device.type == "cpu":
            ROOMS.append(room)


def rows(slab: Tensor) -> Tensor:
    """A slab's values as a matrix of blocks, in the same memory."""
    return slab.view(-1, min(len(slab), BLOCK))


def magnitudes(x: Tensor, room: Tensor) -> Floats:
    """The largest magnitude of each row; LocalError if one is NaN or infinite."""
    torch.abs(x, out=room)
    found: Floats = room.amax(dim=1).cpu().numpy()  # NaN wins
    if not np.isfinite(found).all():
        raise diverged()
    return found


def column(scales: Floats, like: Tensor) -> Tensor:
    """One number for each row, to multiply the rows of `like` by; the array is ours, not a payload's."""
    return torch.from_numpy(scales).to(like.device)[:, None]


def factors(levels: float, scales: Floats) -> Floats:
    """levels / scale for each, and 0 for a scale of 0."""
    if scales.min() > 0:
        return levels / scales
    quotients: Floats = np.divide(levels, scales, out=np.zeros_like(scales), where=scales > 0)
    return quotients


def are_scales(scales: Floats, smallest: float) -> bool:
    """Whether each is +0, or finite and at least `smallest`; told by the bits, as NaN may not be compared aloud."""
    if not len(scales):
        return True
    bits, least = scales.view(np.uint32), int(np.float32(smallest).view(np.uint32))
    return bool(bits.max() < INFINITY and (bits.min() >= least or ((bits == 0) | (bits >= least)).all()))

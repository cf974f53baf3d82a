"""Sparse codecs: find the largest values of each block, and decode those that were sent.

Values that were not sent decode as 0: in the mean over all contributors they count as zeros. They are lost, unless the
sender keeps them, as a method with error feedback does (methods/sparseloco.py).

A block is 4,096 values, and 64 of them are kept (of a last, shorter block 64, too, or all). Searching all values would
take most of the time of encoding. But the values of a block also form 128 groups of 32, and the 64th largest of the
groups' maxima is a lower bound of the 64th largest value: some 90 values of a block reach it, and only these are
sorted. In a block of almost only zeros the bound is 0: then the nonzero values are sorted, and zeros added. If far more
values reach it, because many are equal, the whole slab is partitioned instead.

Of equal magnitudes any may be kept. NaN and Inf are detected on the way.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.protocol.tensors.compression.base import Codec, Payload, divergence_error, is_finite
from shoal.protocol.tensors.compression.blocks import Floats, slabs_of

Places = npt.NDArray[np.int64]

BLOCK = 4096
KEPT = 64
GROUPS = 128  # of a block of 4,096
CROWDED = 4  # times as many values as are kept: sorting more would take longer than partitioning
PLACE_BITS, MAGNITUDE_BITS = 12, 31
PLACE, MAGNITUDE = (1 << PLACE_BITS) - 1, (1 << MAGNITUDE_BITS) - 1  # all of these bits


class Section(NamedTuple):
    """Blocks of one size: the whole ones of a vector, or the one that is left over."""

    start: int  # in values
    blocks: int
    size: int  # of each
    kept: int  # of each

    @property
    def stop(self) -> int:
        """Where the next section begins."""
        return self.start + self.blocks * self.size


class Sparse(Codec):
    """A codec that writes some of the values."""

    @abstractmethod
    def entries(self, payload: Payload, n: int) -> tuple[Places, Floats]:
        """The places of the sent values, each once, and the values; the payload, of `n` values, has been checked."""

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        """The values that were sent, and zeros."""
        values = torch.zeros(n) if out is None else out.zero_()
        places, sent = self.entries(payload, n)
        values.numpy()[places] = sent
        return values

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        """A multiplication and an addition for each value that was sent."""
        places, sent = self.entries(payload, len(total))
        with np.errstate(over="ignore"):  # the reducer checks whether the sum stays finite
            total.numpy()[places] += sent * np.float32(weight)


def sections(n: int, block: int = BLOCK, kept: int = KEPT) -> list[Section]:
    """The sections of `n` values, in order: two at most."""
    whole, rest = divmod(n, block)
    found = [Section(0, whole, block, kept), Section(whole * block, 1, rest, min(kept, rest))]
    return [each for each in found if each.blocks and each.size]


def largest(x: Tensor, kept: int) -> Tensor:
    """The places of the `kept` largest magnitudes in each row, ascending; LocalError if a value is NaN or infinite."""
    if x.device.type != "cpu":
        return _partitioned(x, kept)
    if x.shape[1] != BLOCK or kept > GROUPS:
        return _partitioned(x, kept)
    parts = []
    for _, slab, scratch in slabs_of(x.view(-1)):
        magnitudes = torch.abs(slab, out=scratch.floats).view(-1, BLOCK)
        found = _in_groups(magnitudes, kept)
        parts.append(_partitioned(slab.view(-1, BLOCK), kept) if found is None else found)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _partitioned(x: Tensor, kept: int) -> Tensor:
    if not is_finite(x):
        raise divergence_error()
    if x.device.type != "cpu":
        return x.abs().topk(kept, dim=1, sorted=False).indices.sort(dim=1).values
    beyond = x.shape[1] - kept
    if not beyond:
        return torch.arange(kept).expand(x.shape)
    places = np.argpartition(x.abs().numpy(), beyond, axis=1)[:, beyond:]
    places.sort(axis=1)
    return torch.from_numpy(places)


def _in_groups(magnitudes: Tensor, kept: int) -> Tensor | None:
    """As `largest`, by the maxima of groups; None if too many values reach the bound."""
    tops = magnitudes.view(len(magnitudes), -1, GROUPS).amax(dim=1).numpy()  # NaN wins
    if not np.maximum.reduce(tops, axis=None) < np.inf:
        raise divergence_error()
    least = np.partition(tops, GROUPS - kept, axis=1)[:, GROUPS - kept]
    array = magnitudes.numpy()
    reach = array >= least[:, None]
    empty = np.flatnonzero(least == 0)
    reach[empty] = array[empty] > 0
    reach[empty, :kept] = True
    at = _true(reach)
    if len(at) > CROWDED * kept * len(array):
        return None
    return torch.from_numpy(_sorted_out(at, array.reshape(-1).view(np.int32).take(at), len(array), kept))


def _true(mask: npt.NDArray[np.bool_]) -> Places:
    """The places at which `mask` is true; words of eight are searched first, as nearly all are false throughout."""
    words = mask.reshape(-1).view(np.uint64)
    some = np.flatnonzero(words != 0)
    which = np.flatnonzero(words[some].view(np.bool_))
    places: Places = (some.take(which >> 3) << 3) + (which & 7)
    return places


def _sorted_out(at: Places, bits: npt.NDArray[np.int32], blocks: int, kept: int) -> Places:
    """The places in each block of the `kept` largest of the values at `at`; sorts keys of block, size and place."""
    block = at >> PLACE_BITS
    keys = (((block << MAGNITUDE_BITS) + (MAGNITUDE - bits)) << PLACE_BITS) + (at & PLACE)
    keys.sort()
    counts = np.bincount(block, minlength=blocks)
    first = np.cumsum(counts) - counts
    places: Places = keys[first[:, None] + np.arange(kept)] & PLACE
    places.sort(axis=1)
    return places

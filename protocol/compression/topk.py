"""top-k: of each block of 4,096 values the 64 of largest magnitude, in 2 bits each (0.234 bits per value).

What SparseLoCo sends (arXiv 2508.15706), with error feedback at the sender. A payload is, for the whole blocks and then
for one that is left over: for each block two magnitudes in fp32, little endian, the smaller one first; for each the
places of its values in 12 bits, ascending; for each their codes in 2 bits: 1 for a negative value, 2 for the larger
magnitude. Of a shorter block 64 values are sent, too, or all.

The magnitudes that are kept, from t to m, are cut in two halfway; each half's mean is what its values come back as:

    |x' - x| <= (m - t) / 2 * (1 + 2**-23) if x was kept, and |x' - x| = |x| <= t if not

So a block of one magnitude is lossless as far as it is kept, and zeros are. Decoding looks up and computes nothing:
denormals pass as they are. Magnitudes that are negative, not finite or in the wrong order are refused, and so are
places that do not ascend or are not in the block, and bits left over that are not 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from shoal.protocol.compression import packing
from shoal.protocol.compression.base import Payload, require_size
from shoal.protocol.compression.blocks import INFINITY, Floats
from shoal.protocol.compression.packing import Bytes, Shorts, bytes_of
from shoal.protocol.compression.selection import BLOCK, KEPT, Places, Section, largest, sections
from shoal.protocol.compression.sparse import Sparse
from shoal.protocol.errors import PayloadError

NEGATIVE, LARGER = 1, 2  # bits of a code


class Parts(NamedTuple):
    """What a payload says of a section: a row for each block."""

    levels: Floats
    places: Shorts  # with one more where their number is odd
    codes: Bytes  # with those left over


class TopK(Sparse):
    """A fixed number of values of each block; the manifest's keeps one of 64."""

    name = "topk"

    def __init__(self, block: int = BLOCK, kept: int = KEPT) -> None:
        assert 0 < kept <= block <= BLOCK
        self.block = block
        self._kept = kept

    def bytes_for(self, n: int) -> int:
        """For each block begun 8, 1.5 per place, 1/4 per code: 120 for 4,096 values."""
        return sum(map(_size, self._sections(n)))

    def encode(self, values: Tensor) -> Payload:
        """The sections, one after the other."""
        return b"".join(
            _encode(values[each.start : each.stop].view(each.blocks, each.size), each.kept)
            for each in self._sections(len(values))
        )

    def peak(self, payload: Payload, n: int) -> float:
        """The largest of the magnitudes."""
        require_size(self, payload, n)
        return max((_check(section, parts) for section, parts in self._read(payload, n)), default=0)

    def entries(self, payload: Payload, n: int) -> tuple[Places, Floats]:
        """The values' places, and what they are looked up as."""
        found = [_entries(section, parts) for section, parts in self._read(payload, n)]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return np.concatenate([places for places, _ in found]), np.concatenate([values for _, values in found])

    def _sections(self, n: int) -> list[Section]:
        return sections(n, self.block, self._kept)

    def _read(self, payload: Payload, n: int) -> list[tuple[Section, Parts]]:
        found, offset = [], 0
        for section in self._sections(n):
            found.append((section, _parts(payload, section, offset)))
            offset += _size(section)
        return found


def levels_of(magnitudes: Floats) -> tuple[Floats, Bytes]:
    """The two means of each row, and which values belong to the larger."""
    low, high = magnitudes.min(axis=1, keepdims=True), magnitudes.max(axis=1, keepdims=True)
    wide = magnitudes.astype(np.float64)  # in which no sum overflows, and that of equal magnitudes is exact
    larger = wide > (low.astype(np.float64) + high) / 2
    count = larger.sum(axis=1)
    below, above = np.where(larger, 0, wide).sum(axis=1), np.where(larger, wide, 0).sum(axis=1)
    lower = below / (magnitudes.shape[1] - count)
    upper = np.divide(above, count, out=lower.copy(), where=count > 0)
    return np.stack((lower, upper), axis=1).astype("<f4"), larger.astype(np.uint8)


def _encode(x: Tensor, kept: int) -> bytes:
    places = largest(x, kept)
    values = x.gather(1, places).cpu().numpy()
    levels, larger = levels_of(np.abs(values))
    codes = larger * np.uint8(LARGER) + (values < 0)
    return levels.tobytes() + packing.pack12(places.cpu().numpy()).tobytes() + packing.pack2(codes).tobytes()


def _check(section: Section, parts: Parts) -> float:
    """The largest magnitude; PayloadError if something is wrong."""
    bits, kept = parts.levels.view(np.uint32), section.kept
    if bits.max() >= INFINITY or (bits[:, 0] > bits[:, 1]).any():
        raise PayloadError("topk payload with magnitudes that are NaN, infinite, negative or in the wrong order")
    places = parts.places[:, :kept]
    if (places[:, 1:] <= places[:, :-1]).any() or places[:, -1].max() >= section.size:
        raise PayloadError("topk payload with places that do not ascend, or are not in their block")
    if parts.places[:, kept:].any() or parts.codes[:, kept:].any():
        raise PayloadError("topk payload with bits left over that are not 0")
    return float(parts.levels[:, 1].max())


def _entries(section: Section, parts: Parts) -> tuple[Places, Floats]:
    signed = np.stack((parts.levels, -parts.levels), axis=2).reshape(-1, 4)  # in the order of the codes
    codes = parts.codes[:, : section.kept]
    firsts = np.arange(section.start, section.stop, section.size)[:, None]
    places = parts.places[:, : section.kept] + firsts
    return places.ravel(), np.take_along_axis(signed, codes.astype(np.int64), axis=1).ravel()


def _size(section: Section) -> int:
    return section.blocks * (8 + bytes_of(section.kept, 12) + bytes_of(section.kept, 2))


def _parts(payload: Payload, section: Section, offset: int) -> Parts:
    blocks, kept = section.blocks, section.kept
    of_places, of_codes = bytes_of(kept, 12), bytes_of(kept, 2)
    levels = np.frombuffer(payload, "<f4", 2 * blocks, offset).reshape(blocks, 2)
    places = np.frombuffer(payload, np.uint8, blocks * of_places, offset + 8 * blocks)
    codes = np.frombuffer(payload, np.uint8, blocks * of_codes, offset + (8 + of_places) * blocks)
    return Parts(
        levels,
        packing.unpack12(places.reshape(blocks, of_places), kept),
        packing.unpack2(codes.reshape(blocks, of_codes)),
    )

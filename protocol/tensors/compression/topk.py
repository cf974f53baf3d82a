"""top-k: of each block of 4,096 values the 64 of largest magnitude, in 2 bits each (0.234 bits per value).

SparseLoCo sends this (arXiv 2508.15706), with error feedback at the sender. A payload is, for the whole blocks and then
for a shorter last one: for each block two magnitudes in fp32, little endian, the smaller one first; for each block the
places of its values in 12 bits, ascending; for each block the codes of its values in 2 bits: 1 for a negative value, 2
for the larger magnitude. Of a shorter block 64 values are sent, too, or all.

The kept magnitudes, from t to m, are divided halfway; the values of each half are decoded as its mean:

    |x' - x| <= (m - t) / 2 * (1 + 2**-23) if x was kept, and |x' - x| = |x| <= t if not

So the kept values of a block of one magnitude are lossless, and so are zeros. Decoding looks values up and computes
nothing: denormals pass as they are. Magnitudes that are negative, not finite or in the wrong order are refused, and so
are places that do not ascend or are not in the block, and bits left over that are not 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, require_size
from shoal.protocol.tensors.compression.blocks import INFINITY, Floats
from shoal.protocol.tensors.compression.sparse import BLOCK, KEPT, Places, Section, Sparse, largest, sections

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.uint16]

NEGATIVE, LARGER = 1, 2  # bits of a code


class Parts(NamedTuple):
    """The payload of a section, with a row for each block."""

    levels: Floats
    places: Shorts  # padded to an even number
    codes: Bytes  # padded to whole bytes


class TopK(Sparse):
    """Keeps a fixed number of values of each block; the manifest's `topk` keeps one of 64."""

    name = "topk"

    def __init__(self, block: int = BLOCK, kept: int = KEPT) -> None:
        assert 0 < kept <= block <= BLOCK
        self.block = block
        self._kept = kept

    def bytes_for(self, n: int) -> int:
        """For each block begun 8, 1.5 per place, 1/4 per code: 120 for 4,096 values."""
        return sum(map(_size, self._sections(n)))

    def encode(self, values: Tensor) -> Payload:
        """The payloads of the sections, one after the other."""
        return b"".join(
            _encode(values[each.start : each.stop].view(each.blocks, each.size), each.kept)
            for each in self._sections(len(values))
        )

    def peak(self, payload: Payload, n: int) -> float:
        """The largest of the magnitudes."""
        require_size(self, payload, n)
        return max((_check(section, parts) for section, parts in self._read(payload, n)), default=0)

    def entries(self, payload: Payload, n: int) -> tuple[Places, Floats]:
        """The places of the sent values, and the values."""
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
    """The means of both halves of each row, and which values belong to the larger one."""
    low, high = magnitudes.min(axis=1, keepdims=True), magnitudes.max(axis=1, keepdims=True)
    wide = magnitudes.astype(np.float64)  # so that no sum overflows, and a sum of equal magnitudes is exact
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
    return levels.tobytes() + pack12(places.cpu().numpy()).tobytes() + pack2(codes).tobytes()


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
        unpack12(places.reshape(blocks, of_places), kept),
        unpack2(codes.reshape(blocks, of_codes)),
    )


# Small numbers are packed row by row, 12 bits for a place and 2 for a code. The first number's lowest bit is the first
# byte's lowest. Rows begin at whole bytes; bits left over are 0.


def bytes_of(count: int, bits: int) -> int:
    """The bytes of a row of `count` numbers."""
    return -(-count * bits // 8)


def pack12(numbers: npt.NDArray[np.int64]) -> Bytes:
    """Rows of numbers below 4,096; two become three bytes."""
    assert not (numbers >> 12).any(), "a place beyond its block"
    rows, count = numbers.shape
    pairs = np.zeros((rows, -(-count // 2), 2), np.uint16)
    pairs.reshape(rows, -1)[:, :count] = numbers
    packed = np.empty((*pairs.shape[:2], 3), np.uint8)
    first, second = pairs[..., 0], pairs[..., 1]
    packed[..., 0] = first & 0xFF
    packed[..., 1] = (first >> 8) | ((second & 0xF) << 4)
    packed[..., 2] = second >> 4
    return packed.reshape(rows, -1)[:, : bytes_of(count, 12)]


def unpack12(packed: Bytes, count: int) -> Shorts:
    """The `count` numbers of each row; one more if it is odd, from the four bits left over."""
    rows = len(packed)
    triples = np.zeros((rows, -(-count // 2), 3), np.uint16)
    triples.reshape(rows, -1)[:, : packed.shape[1]] = packed
    numbers = np.empty((*triples.shape[:2], 2), np.uint16)
    numbers[..., 0] = triples[..., 0] | ((triples[..., 1] & 0xF) << 8)
    numbers[..., 1] = (triples[..., 1] >> 4) | (triples[..., 2] << 4)
    return numbers.reshape(rows, -1)


def pack2(numbers: Bytes) -> Bytes:
    """Rows of numbers below 4; four become a byte."""
    rows, count = numbers.shape
    fours = np.zeros((rows, -(-count // 4), 4), np.uint8)
    fours.reshape(rows, -1)[:, :count] = numbers
    packed: Bytes = fours[..., 0] | (fours[..., 1] << 2) | (fours[..., 2] << 4) | (fours[..., 3] << 6)
    return packed


def unpack2(packed: Bytes) -> Bytes:
    """All numbers of each row, padding included."""
    fours: Bytes = packed[..., None] >> np.array((0, 2, 4, 6), np.uint8) & np.uint8(3)
    return fours.reshape(len(packed), -1)

"""Small numbers, packed row by row: 12 bits for a place in a block of 4,096, 2 bits for one of four values.

The first number's lowest bit is the first byte's lowest. Rows begin with a whole byte; what is left over is 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.uint16]


def bytes_of(count: int, bits: int) -> int:
    """What a row of so many numbers takes."""
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
    """`count` numbers of each row; one more, where it is odd, from the four bits left over."""
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
    """All numbers of each row, with those left over."""
    fours: Bytes = packed[..., None] >> np.array((0, 2, 4, 6), np.uint8) & np.uint8(3)
    return fours.reshape(len(packed), -1)

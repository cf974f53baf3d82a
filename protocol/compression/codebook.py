"""A codebook of at most 16 numbers for many, by k-means: on a line, where it is sorting and sums.

It begins with numbers that share the others equally among them, and each step moves each to the mean of those nearest
to it. No more than 16 different numbers are their own codebook. All sums are in fp64, in which none overflows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.protocol.compression.blocks import Floats

SIZE = 16
STEPS = 8  # after which little moves


def fit(values: Floats) -> Floats:
    """The codebook, ascending; of 16 numbers, or of as many as differ if these are fewer."""
    ordered = np.sort(values).astype(np.float64)
    different = ordered[np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)]
    if len(different) <= SIZE:
        return different.astype(np.float32)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    book = ordered[(2 * np.arange(SIZE) + 1) * len(ordered) // (2 * SIZE)]
    for _ in range(STEPS):
        cuts = np.concatenate(([0], np.searchsorted(ordered, _between(book), side="right"), [len(ordered)]))
        counts = np.diff(cuts)
        book = np.divide(np.diff(sums[cuts]), counts, out=book.copy(), where=counts > 0)
    return np.clip(book, ordered[0], ordered[-1]).astype(np.float32)


def nearest(book: Floats, values: Floats) -> npt.NDArray[np.int64]:
    """For each value, which number of an ascending codebook; half-way, the smaller one."""
    return np.searchsorted(_between(book.astype(np.float64)), values, side="left")


def _between(book: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (book[1:] + book[:-1]) / 2

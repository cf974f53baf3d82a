"""fedzip: the largest values of each block, quantised to a codebook of 16, Huffman-coded (about 0.17 bits per value).

FedZip (arXiv 2102.01593) compresses a model's change in three steps: it keeps the largest values, quantises them to a
codebook found by k-means, and applies Huffman coding. As in `topk`, 64 values of each block of 4,096 are kept. A
payload is

    16 fp32, little endian          the codebook; unused entries are 0
    2 x 8 bytes                     the code lengths of two Huffman codes, 4 bits for each symbol, lower half first
    2 x 4 bytes, little endian      the number of bits of each coded stream
    bits, lowest first              the symbols of the places, the extra bits of the places, the symbols of the values

A place is coded as the gap g, the number of values left out before it in its block: the symbol is the bit length of g,
0 to 12, and the bits below its highest one are extra bits. Sizes are not known beforehand; `bytes_for` is the maximum:
4 bits for each symbol, and 11 extra bits. With r the range of all kept values, and t the smallest kept magnitude of x's
block:

    |x' - x| <= r * (1 + 2**-23) if x was kept, and |x' - x| = |x| <= t if not

k-means makes most errors far smaller. If at most 16 different values are kept, they are lossless. Values are decoded by
lookup alone. A payload is read in `peak` and again for its values, which takes longer than with other codecs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.node.lab.codecs import huffman
from shoal.node.lab.codecs.huffman import SYMBOLS, Bits, Symbols
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression.base import Payload, require_size
from shoal.protocol.tensors.compression.blocks import Floats
from shoal.protocol.tensors.compression.sparse import BLOCK, Places, Section, Sparse, largest, sections

HEAD = np.dtype([("book", "<f4", SYMBOLS), ("lengths", "u1", (2, SYMBOLS // 2)), ("bits", "<u4", 2)])
MOST = 4 + 11 + 4  # bits for a kept value
WIDEST = 12  # bits of a gap
STEPS = 8  # of k-means, after which little changes


class FedZip(Sparse):
    """Top-k, a codebook, and Huffman codes."""

    name = "fedzip"
    block = BLOCK

    def bytes_for(self, n: int) -> int:
        """The maximum: 88 bytes, and 19 bits for each kept value."""
        return most(n)

    def fits(self, size: int, n: int) -> bool:
        """Sizes from the head alone to the maximum."""
        return HEAD.itemsize * (n > 0) <= size <= most(n)

    def encode(self, values: Tensor) -> Payload:
        """See the module's docstring; empty for no values."""
        if not len(values):
            return b""
        found = [_select(values, each) for each in sections(len(values))]
        gaps = np.concatenate([each for each, _ in found])
        kept = np.concatenate([each for _, each in found])
        book = fit(kept)
        return _pack(book, gaps, nearest(book, kept))

    def peak(self, payload: Payload, n: int) -> float:
        """The largest magnitude in the payload."""
        require_size(self, payload, n)
        return float(np.abs(_read(payload, n)[1]).max(initial=0))

    def entries(self, payload: Payload, n: int) -> tuple[Places, Floats]:
        """The places of the kept values, and their codebook entries."""
        return _read(payload, n)


def most(n: int) -> int:
    """The largest payload of `n` values, in bytes."""
    kept = _kept(n)
    return HEAD.itemsize + -(-MOST * kept // 8) if kept else 0


def _kept(n: int) -> int:
    return sum(each.blocks * each.kept for each in sections(n))


def _select(values: Tensor, section: Section) -> tuple[Symbols, Floats]:
    """The gap before each kept value, and the kept values."""
    x = values[section.start : section.stop].view(section.blocks, section.size)
    places = largest(x, section.kept)
    gaps = np.diff(places.cpu().numpy(), axis=1, prepend=-1) - 1
    return gaps.ravel(), x.gather(1, places).cpu().numpy().ravel()


def _pack(book: Floats, gaps: Symbols, codes: Symbols) -> bytes:
    widths = np.frexp(gaps.astype(np.float64))[1].astype(np.int64)
    head = np.zeros((), HEAD)
    head["book"][: len(book)] = book
    streams = []
    for which, symbols in enumerate((widths, codes)):
        lengths = huffman.lengths_for(symbols)
        head["lengths"][which] = lengths[0::2] | lengths[1::2] << 4
        streams.append(huffman.encode(symbols, lengths))
        head["bits"][which] = len(streams[-1])
    bits = np.concatenate((streams[0], _extra_bits(gaps, widths), streams[1]))
    return head.tobytes() + np.packbits(bits, bitorder="little").tobytes()


def _read(payload: Payload, n: int) -> tuple[Places, Floats]:
    """Places and values; PayloadError if the payload is malformed."""
    kept = _kept(n)
    if not kept:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    head = np.frombuffer(payload, HEAD, 1)[0]
    book = np.array(head["book"])
    if not np.isfinite(book).all():
        raise PayloadError("fedzip payload with NaN or Inf in its codebook")
    lengths = [np.stack((each & 0xF, each >> 4), axis=1).ravel().astype(np.int64) for each in head["lengths"]]
    bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=HEAD.itemsize), bitorder="little")
    first, last = (int(each) for each in head["bits"])
    if first + last > len(bits):
        raise PayloadError("fedzip payload that ends too early")
    widths = huffman.decode(bits[:first], kept, lengths[0])
    gaps, end = _gaps(bits[first:], widths)
    codes = huffman.decode(bits[first + end : first + end + last], kept, lengths[1])
    rest = bits[first + end + last :]
    if len(rest) > 7 or rest.any():
        raise PayloadError("fedzip payload with bits left over")
    return _places(gaps, n), book[codes]


def _extra_bits(gaps: Symbols, widths: Symbols) -> Bits:
    """The bits below the highest one of each gap, lowest first."""
    sizes = np.maximum(widths - 1, 0)
    starts = np.cumsum(sizes) - sizes
    bits = np.zeros(int(sizes.sum()), np.uint8)
    for place in range(WIDEST - 1):
        wider = sizes > place
        bits[starts[wider] + place] = (gaps[wider] >> place) & 1
    return bits


def _gaps(bits: Bits, widths: Symbols) -> tuple[Symbols, int]:
    """The gaps of these bit lengths, and the number of extra bits that were read."""
    sizes = np.maximum(widths - 1, 0)
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    if widths.max() > WIDEST or total > len(bits):
        raise PayloadError("fedzip payload with gaps that are not there")
    gaps = np.where(widths > 0, 1 << sizes, 0)
    for place in range(WIDEST - 1):
        wider = sizes > place
        gaps[wider] |= bits[starts[wider] + place].astype(np.int64) << place
    return gaps, total


def _places(gaps: Symbols, n: int) -> Places:
    """Places counted from the vector's first value; PayloadError if one is not in its block."""
    found, before = [], 0
    for section in sections(n):
        count = section.blocks * section.kept
        steps = gaps[before : before + count].reshape(section.blocks, section.kept) + 1
        places = np.cumsum(steps, axis=1) - 1
        if places[:, -1].max() >= section.size:
            raise PayloadError("fedzip payload with places that are not in their block")
        found.append((places + np.arange(section.start, section.stop, section.size)[:, None]).ravel())
        before += count
    whole: npt.NDArray[np.int64] = np.concatenate(found)
    return whole


def fit(values: Floats) -> Floats:
    """The codebook, ascending: 16 numbers by k-means, or the values themselves if no more than 16 differ.

    In one dimension k-means is sorting and sums. It begins with quantiles, and each step moves each number to the mean
    of the values nearest to it. All sums are in fp64, in which none overflows.
    """
    ordered = np.sort(values).astype(np.float64)
    different = ordered[np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)]
    if len(different) <= SYMBOLS:
        return different.astype(np.float32)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    book = ordered[(2 * np.arange(SYMBOLS) + 1) * len(ordered) // (2 * SYMBOLS)]
    for _ in range(STEPS):
        cuts = np.concatenate(([0], np.searchsorted(ordered, _between(book), side="right"), [len(ordered)]))
        counts = np.diff(cuts)
        book = np.divide(np.diff(sums[cuts]), counts, out=book.copy(), where=counts > 0)
    return np.clip(book, ordered[0], ordered[-1]).astype(np.float32)


def nearest(book: Floats, values: Floats) -> Symbols:
    """For each value the index of the nearest number in an ascending codebook; on a tie the smaller one."""
    return np.searchsorted(_between(book.astype(np.float64)), values, side="left")


def _between(book: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (book[1:] + book[:-1]) / 2

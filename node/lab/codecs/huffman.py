"""Canonical Huffman coding of at most 16 symbols, vectorised.

A canonical code follows from its lengths alone (0 for a symbol that does not occur): codes of one length are
consecutive, in the order of the symbols, and shorter ones come first. Sixteen symbols need at most 15 bits, and on
average never more than 4, as many as a fixed-length code.

Where a symbol begins is known only once the one before it is read. So, for each bit, the length of a symbol that would
begin there is looked up, and the true beginnings are found by jumps of 1, 2, 4, 8... symbols. Decoding is total:
invalid lengths, bits that are no symbol, and symbols that do not end with the last bit are refused.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
import numpy.typing as npt

from shoal.protocol.base.errors import PayloadError

Bits = npt.NDArray[np.uint8]  # one in each byte
Symbols = npt.NDArray[np.int64]

SYMBOLS = 16


def lengths_for(symbols: Symbols) -> Symbols:
    """The lengths of the optimal code for these symbols; a single symbol takes one bit."""
    counts = np.bincount(symbols, minlength=SYMBOLS)
    order = count(SYMBOLS)  # unique, so that heap entries never compare their tuples
    heap: list[tuple[int, int, tuple[int, ...]]] = [
        (int(counts[symbol]), int(symbol), (int(symbol),)) for symbol in np.flatnonzero(counts)
    ]
    lengths = np.zeros(SYMBOLS, np.int64)
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    heapq.heapify(heap)
    while len(heap) > 1:
        (one, _, some), (other, _, more) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[list(some + more)] += 1
        heapq.heappush(heap, (one + other, next(order), some + more))
    return lengths


def encode(symbols: Symbols, lengths: Symbols) -> Bits:
    """The concatenated codes of the symbols, each from its highest bit."""
    codes, sizes = _codes(lengths)[symbols], lengths[symbols]
    ends = np.cumsum(sizes)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(lengths.max(initial=0))):  # from the last bit of each
        longer = sizes > place
        bits[ends[longer] - 1 - place] = (codes[longer] >> place) & 1
    return bits


def decode(bits: Bits, number: int, lengths: Symbols) -> Symbols:
    """The `number` symbols that the bits encode; PayloadError if they do not encode exactly as many."""
    if not number:
        if len(bits) or lengths.any():
            raise PayloadError("bits or lengths where there are no symbols")
        return np.empty(0, np.int64)
    symbol_of, length_of = _tables(lengths)
    windows = _windows(bits, int(lengths.max()))
    steps = length_of[windows]
    starts = _chain(steps, number)
    if starts[-1] >= len(bits) or not steps[starts].all() or starts[-1] + steps[starts[-1]] != len(bits):
        raise PayloadError("bits that are not those of so many symbols")
    return symbol_of[windows[starts]]


def _chain(steps: Symbols, number: int) -> Symbols:
    """The first `number` positions when each position p is followed by p + steps[p]; len(steps) beyond the end."""
    end = len(steps)
    jumps = np.append(np.minimum(np.arange(end) + steps, end), end)
    places = np.zeros(1, np.int64)
    while len(places) < number:
        places = np.concatenate((places, jumps[places[: number - len(places)]]))
        jumps = jumps[jumps]
    return places


def _codes(lengths: Symbols) -> Symbols:
    """The code of each symbol."""
    codes = np.zeros(SYMBOLS, np.int64)
    code, before = 0, 0
    for symbol in sorted(np.flatnonzero(lengths), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= int(lengths[symbol]) - before
        codes[symbol], before = code, int(lengths[symbol])
        code += 1
    return codes


def _tables(lengths: Symbols) -> tuple[Symbols, Symbols]:
    """Lookup tables by the next bits, as many as the longest code has: the symbol, and its length (0: no symbol)."""
    used = np.flatnonzero(lengths)
    longest = int(lengths.max(initial=0))
    taken = int((1 << (longest - lengths[used])).sum())
    is_single = longest == taken == 1  # one symbol, which has half of the code space
    if taken != 1 << longest and not is_single:
        raise PayloadError("lengths that no code has")
    symbol_of, length_of = np.zeros((2, 1 << longest), np.int64)
    codes = _codes(lengths)
    for symbol in used:
        spare = longest - int(lengths[symbol])
        first = int(codes[symbol]) << spare
        symbol_of[first : first + (1 << spare)] = symbol
        length_of[first : first + (1 << spare)] = lengths[symbol]
    return symbol_of, length_of


def _windows(bits: Bits, size: int) -> Symbols:
    """For each bit, the number formed by it and the following bits, `size` in all, padded with zeros."""
    padded = np.concatenate((bits, np.zeros(size, np.uint8))).astype(np.int64)
    windows = np.zeros(len(bits), np.int64)
    for place in range(size):
        windows = (windows << 1) | padded[place : place + len(bits)]
    return windows

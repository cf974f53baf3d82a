"""Huffman coding of small symbols, 16 at most, without a loop over them.

A code is known by its lengths alone (0 for a symbol that does not occur): codes of one length follow each other in the
order of the symbols, and those of the next length begin after them. Sixteen symbols need 15 bits at most, and on
average never more than 4, as many as a code of one length would.

Where a symbol begins is known only when the one before it was read. So the length of the symbol that would begin there
is looked up for each bit, and the places are found by jumps of 1, 2, 4, 8... symbols. Decoding is total: lengths that
are no code, bits that are no symbol, and symbols that do not end with the last bit are refused.
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
    """Those of the best code for these symbols; a symbol that is alone takes a bit as well."""
    counts = np.bincount(symbols, minlength=SYMBOLS)
    order = count(SYMBOLS)  # no two are equal, and no tuples are compared
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
    """The symbols' codes, one after the other, each from its highest bit."""
    codes, sizes = _codes(lengths)[symbols], lengths[symbols]
    ends = np.cumsum(sizes)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(lengths.max(initial=0))):  # from the last bit of each
        longer = sizes > place
        bits[ends[longer] - 1 - place] = (codes[longer] >> place) & 1
    return bits


def decode(bits: Bits, number: int, lengths: Symbols) -> Symbols:
    """So many symbols; PayloadError if these are not the bits of as many."""
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
    """0, and where one comes by so many steps less one; the end, once one is there or beyond."""
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
    """For the next bits, as many as the longest code has: the symbol, and its length; 0 where there is none."""
    used = np.flatnonzero(lengths)
    longest = int(lengths.max(initial=0))
    taken = int((1 << (longest - lengths[used])).sum())
    if taken != 1 << longest and not (
        longest == 1 and taken == 1
    ):  # all of the room, or half of it by one symbol alone
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
    """For each bit, the number that it and those after it make; zeros follow the last."""
    padded = np.concatenate((bits, np.zeros(size, np.uint8))).astype(np.int64)
    windows = np.zeros(len(bits), np.int64)
    for place in range(size):
        windows = (windows << 1) | padded[place : place + len(bits)]
    return windows

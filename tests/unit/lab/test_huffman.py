"""Huffman codes are as short as they can be, come back, and take no other bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.node.lab.codecs.huffman import SYMBOLS, decode, encode, lengths_for
from shoal.protocol.base.errors import PayloadError

symbols = hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, SYMBOLS - 1))


@given(symbols)
def test_symbols_come_back(these: np.ndarray) -> None:
    lengths = lengths_for(these)
    assert np.array_equal(decode(encode(these, lengths), len(these), lengths), these)


@given(symbols)
def test_no_more_than_four_bits_and_no_less_than_their_entropy(these: np.ndarray) -> None:
    bits = len(encode(these, lengths_for(these)))
    assert bits <= 4 * len(these)
    shares = np.bincount(these, minlength=1) / max(1, len(these))
    shares = shares[shares > 0]
    entropy = -(shares * np.log2(shares)).sum() * len(these)
    assert entropy - 1e-6 <= bits <= entropy + max(1, len(these))


def test_these_counts_have_these_lengths_and_these_symbols_these_bits() -> None:
    these = np.array([2] * 4 + [0] * 2 + [7] + [9])
    lengths = lengths_for(these)
    assert lengths[[0, 2, 7, 9]].tolist() == [2, 1, 3, 3]
    assert encode(np.array([2, 0, 7, 9]), lengths).tolist() == [0, 1, 0, 1, 1, 0, 1, 1, 1]


def test_the_longest_code_has_fifteen_bits() -> None:
    these = np.repeat(np.arange(SYMBOLS), [1, 1, *(2**k for k in range(1, SYMBOLS - 1))])
    lengths = lengths_for(these)
    assert lengths.max() == SYMBOLS - 1
    assert np.array_equal(decode(encode(these, lengths), len(these), lengths), these)


def test_a_symbol_alone_takes_a_bit_each() -> None:
    these = np.full(9, 3)
    assert encode(these, lengths_for(these)).tolist() == [0] * 9


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_symbols_is_refused(change: int) -> None:
    these = np.arange(100) % 7
    lengths = lengths_for(these)
    with pytest.raises(PayloadError):
        decode(encode(these, lengths), len(these) + change, lengths)


@pytest.mark.parametrize("lengths", [[0], [1, 1, 1], [2], [2, 2, 2], [1, 2], [15, 15]])
def test_lengths_of_no_code_are_refused(lengths: list[int]) -> None:
    whole = np.zeros(SYMBOLS, np.int64)
    whole[: len(lengths)] = lengths
    with pytest.raises(PayloadError):
        decode(np.zeros(15, np.uint8), 15, whole)


@given(
    hnp.arrays(np.uint8, st.integers(0, 60), elements=st.integers(0, 1)),
    st.integers(0, 40),
    hnp.arrays(np.int64, SYMBOLS, elements=st.sampled_from([0, 0, 1, 2, 2, 3, 3, 15])),
)
@settings(max_examples=300)
def test_decoding_is_total_and_gives_back_what_would_be_encoded(
    bits: np.ndarray, number: int, lengths: np.ndarray
) -> None:
    try:
        these = decode(bits, number, lengths)
    except PayloadError:
        return
    assert len(these) == number
    assert np.array_equal(encode(these, lengths), bits)

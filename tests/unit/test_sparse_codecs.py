"""Sparse codecs find the largest values, and top-k keeps its bound and refuses what it never sends."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from shoal.node.lab.codecs import codec
from shoal.protocol.base.errors import LocalError, PayloadError
from shoal.protocol.tensors.compression.sparse import BLOCK, KEPT, Sparse, largest
from shoal.protocol.tensors.compression.topk import TopK, pack2, pack12, unpack2, unpack12
from tests.unit.test_codec_bounds import bits, error
from tests.unit.test_codec_bounds import largest as largest_of
from tests.unit.test_compression import normal, vectors

longer = st.builds(
    lambda array, more: torch.cat((torch.from_numpy(array), normal(more))),
    vectors,
    st.sampled_from([0, BLOCK, 2 * BLOCK]),
)
SPARSE = pytest.mark.parametrize("name", ["topk", "fedzip"])


def least_kept(values: Tensor, block: int = BLOCK, kept: int = KEPT) -> Tensor:
    """The smallest magnitude that its block sends, for each value."""
    parts = [part.abs().topk(min(kept, len(part))).values for part in values.split(block) if len(part)]
    whole = [least[-1].expand(block) for least in parts]
    return torch.cat(whole)[: len(values)].double() if parts else values.double()


def kept_of(name: str, values: Tensor) -> Tensor:
    """Which values are sent."""
    kept = torch.zeros(len(values), dtype=torch.bool)
    sparse = codec(name)
    assert isinstance(sparse, Sparse)
    kept[torch.from_numpy(sparse.entries(sparse.encode(values), len(values))[0])] = True
    return kept


# -- selection ----------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.98, 0.99, 1.0]), st.sampled_from([0.7, 0.0]))
@settings(max_examples=40)
def test_the_largest_are_found_whatever_repeats(seed: int, repeated: float, what: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3 * BLOCK, generator=generator)
    values[torch.rand(len(values), generator=generator) < repeated] = what
    x = values.view(3, BLOCK)
    places = largest(x, KEPT)
    assert (places[:, 1:] > places[:, :-1]).all()
    found = x.gather(1, places).abs().sort(dim=1, descending=True).values
    assert torch.equal(found, x.abs().topk(KEPT, dim=1).values)


def test_the_largest_may_all_be_in_one_group_or_at_the_ends() -> None:
    x = normal(2 * BLOCK).clamp(-2, 2).view(2, BLOCK)
    x[0, :KEPT] = torch.arange(3.0, 3 + KEPT)
    x[1, 5::128] -= 10
    x[1, -KEPT // 2 :] += 20
    assert largest(x, KEPT)[0].tolist() == list(range(KEPT))
    assert set(largest(x, KEPT)[1].tolist()) == {*range(5, BLOCK, 128), *range(BLOCK - KEPT // 2, BLOCK)}


@SPARSE
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 4095, 4096, 8191, 8192])
def test_not_finite_values_are_found_in_every_block(name: str, bad: float, at: int) -> None:
    values = normal(2 * BLOCK + 100)
    values[at] = bad
    with pytest.raises(LocalError):
        codec(name).encode(values)


# -- packing ------------------------------------------------------------------------------------------------


@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 4095)))
def test_twelve_bits_come_back(numbers: np.ndarray) -> None:
    count = numbers.shape[1]
    packed = pack12(numbers)
    assert packed.shape[1] == -(-12 * count // 8)
    assert np.array_equal(unpack12(packed, count)[:, :count], numbers)
    assert not unpack12(packed, count)[:, count:].any()
    assert np.array_equal(unpack2(pack2((numbers & 3).astype(np.uint8)))[:, :count], numbers & 3)


def test_twelve_bits_begin_with_the_lowest() -> None:
    assert pack12(np.array([[0x321, 0x654]])).tobytes() == b"\x21\x43\x65"
    assert pack2(np.array([[1, 2, 3, 0, 3]], np.uint8)).tobytes() == b"\x39\x03"


def test_no_place_is_beyond_twelve_bits() -> None:
    with pytest.raises(AssertionError):
        pack12(np.array([[4096]]))


# -- top-k --------------------------------------------------------------------------------------------------


@given(longer)
def test_topk_errs_within_its_bound(values: Tensor) -> None:
    m, t, kept = largest_of(values, BLOCK), least_kept(values), kept_of("topk", values)
    errors = error("topk", values)
    assert (errors <= ((m - t) / 2 * (1 + 2.0**-23)).clamp(min=2.0**-149))[kept].all()
    assert (errors == values.double().abs())[~kept].all()
    assert (errors <= t)[~kept].all()
    assert kept.sum() == sum(min(KEPT, len(part)) for part in values.split(BLOCK))


def test_topk_of_these_values_is_these_bytes() -> None:
    payload = struct.pack("<2f", 2.0, 6.0) + b"\x00\x20\x00\x03\x00" + b"\x2c"[:1]
    # magnitudes 1 and 3, and 6; places 0, 2, 3; codes larger and negative, smaller, negative
    code = 3 | 0 << 2 | 1 << 4
    payload = payload[:-1] + bytes([code])
    topk = TopK(4, 3)
    assert topk.encode(torch.tensor([-6.0, 0.5, 1.0, -3.0])) == payload
    assert topk.decode(payload, 4).tolist() == [-6.0, 0.0, 2.0, -2.0]


def test_topk_decodes_these_bytes_to_these_bits() -> None:
    payload = struct.pack("<2f", 1e-45, 0.3) + b"\x01\x30\x00" + bytes([0 | 3 << 2])
    assert bits(TopK(4, 2).decode(payload, 4)) == [0, 1, 0, struct.unpack("<i", struct.pack("<f", -0.3))[0]]


@pytest.mark.parametrize(
    ("low", "high", "places", "codes"),
    [
        (2.0, 1.0, b"\x00\x10\x00", 0),  # the wrong order
        (-1.0, 1.0, b"\x00\x10\x00", 0),
        (-0.0, 1.0, b"\x00\x10\x00", 0),
        (1.0, float("inf"), b"\x00\x10\x00", 0),
        (1.0, 1.0, b"\x01\x10\x00", 0),  # a place twice
        (1.0, 1.0, b"\x01\x00\x00", 0),  # descending
        (1.0, 1.0, b"\x00\x40\x00", 0),  # place 4 of 4
        (1.0, 1.0, b"\x00\x10\x00", 16),  # a code more
    ],
)
def test_topk_refuses_what_it_never_sends(low: float, high: float, places: bytes, codes: int) -> None:
    payload = struct.pack("<2f", low, high) + places + bytes([codes])
    with pytest.raises(PayloadError):
        TopK(4, 2).peak(payload, 4)


def test_topk_refuses_a_place_left_over() -> None:
    good = bytes(TopK(4, 1).encode(torch.ones(4)))
    assert good[8:10] == bytes(2) or good[9] < 16
    with pytest.raises(PayloadError):
        TopK(4, 1).peak(good[:9] + bytes([good[9] | 0x10]) + good[10:], 4)


def test_topk_takes_120_bytes_for_a_block() -> None:
    assert codec("topk").bytes_for(BLOCK) == 120
    assert TopK(4, 1).bytes_for(4) == 8 + 2 + 1
    assert codec("topk").bytes_for(10 * BLOCK + 1) == 1200 + 8 + 2 + 1

"""top-k, sign and FedZip keep their bounds, send the largest values, and refuse what they never send."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from shoal.protocol.compression import codec
from shoal.protocol.compression.base import Payload
from shoal.protocol.compression.fedzip import HEAD
from shoal.protocol.compression.packing import pack2, pack12, unpack2, unpack12
from shoal.protocol.compression.selection import BLOCK, KEPT, largest
from shoal.protocol.compression.sparse import Sparse
from shoal.protocol.compression.topk import TopK
from shoal.protocol.errors import LocalError, PayloadError
from tests.unit.test_codec_bounds import LARGEST, bits, error, refused, trip
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
    assert codec("topk").bytes_for(10 * BLOCK + 1) == 1200 + 8 + 2 + 1


# -- sign ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_sign_errs_within_its_bounds(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    m = largest_of(values)
    errors = error("sign", values)
    assert (errors <= (m * (1 + 2.0**-23)).clamp(min=2.0**-126)).all()
    for part, err in zip(values.split(1024), errors.split(1024), strict=True):
        x = part.double()
        if len(x) and x.abs().mean() >= 2.0**-126:
            expected = x.square().sum() - x.abs().sum() ** 2 / len(x)
            assert err.square().sum() <= expected + x.square().sum() * 2.0**-20


def test_sign_sends_ones_and_a_mean() -> None:
    payload = struct.pack("<fB", 2.0, 0b10)
    assert codec("sign").encode(torch.tensor([3.0, -1.0])) == payload
    assert codec("sign").decode(payload, 2).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("value", [0.1, -3.7, 2.0**-126, LARGEST])
def test_sign_is_exact_on_blocks_of_one_magnitude(value: float) -> None:
    values = torch.full((2051,), value) * (1 - 2 * (torch.arange(2051) % 3 == 0))
    assert torch.equal(trip("sign", values), values)


@pytest.mark.parametrize(("s", "signs"), [(-1.0, 0), (-0.0, 0), (1e-40, 0), (float("nan"), 0), (1.0, 4)])
def test_sign_refuses_what_it_never_sends(s: float, signs: int) -> None:
    refused("sign", struct.pack("<fB", s, signs), 2)


# -- FedZip -------------------------------------------------------------------------------------------------


@given(longer)
def test_fedzip_errs_within_its_bound(values: Tensor) -> None:
    t, kept = least_kept(values), kept_of("fedzip", values)
    errors = error("fedzip", values)
    sent = values[kept].double()
    width = sent.max() - sent.min() if len(sent) else torch.tensor(0.0)
    assert (errors[kept] <= (width * (1 + 2.0**-23)).clamp(min=2.0**-149)).all()
    assert (errors == values.double().abs())[~kept].all()
    assert (errors <= t)[~kept].all()


def test_fedzip_is_lossless_on_few_values() -> None:
    choices = torch.linspace(-1, 1, 16) * 0.3
    values = torch.zeros(3 * BLOCK)
    places = torch.randperm(BLOCK, generator=torch.Generator().manual_seed(1))[:40]
    for start in range(0, 3 * BLOCK, BLOCK):
        values[start + places[:15]] = choices[1:]
        values[start + places[15:]] = choices[15]
    values[values == choices[7]] = 0
    assert torch.equal(trip("fedzip", values), values)


def test_fedzip_is_closer_than_top_k_in_less_room() -> None:
    values = normal(64 * BLOCK)
    kept = trip("topk", values) != 0
    assert error("fedzip", values)[kept].square().mean() < error("topk", values)[kept].square().mean() / 4
    payload = codec("fedzip").encode(values)
    assert 0.17 < 8 * len(payload) / len(values) < 0.19
    assert len(payload) < 0.8 * codec("topk").bytes_for(len(values))


def test_fedzip_of_one_value_is_these_bytes() -> None:
    payload = codec("fedzip").encode(torch.tensor([2.5]))
    head = struct.pack("<16f", 2.5, *[0.0] * 15) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + struct.pack("<2I", 1, 1)
    assert payload == head + b"\0"
    assert codec("fedzip").decode(payload, 1).tolist() == [2.5]


@pytest.mark.parametrize("n", [1, 5, 100, BLOCK + 3])
def test_fedzip_refuses_a_payload_with_any_bit_of_its_codes_in_disorder(n: int) -> None:
    """A flipped bit after the codebook is refused, or gives other finite values; it never passes for the same."""
    values = normal(n).round(decimals=1)
    payload = bytes(codec("fedzip").encode(values))
    before = codec("fedzip").decode(payload, n)
    for bit in range(8 * 64, 8 * len(payload), 7):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            codec("fedzip").peak(changed, n)
        except PayloadError:
            continue
        after = codec("fedzip").decode(changed, n)
        assert after.isfinite().all()
        assert not torch.equal(before, after) or n < KEPT


@given(st.data(), st.integers(1, 200))
@settings(max_examples=200)
def test_fedzip_takes_any_bytes_with_a_plausible_head(data: st.DataObject, n: int) -> None:
    head = np.zeros((), HEAD)
    head["book"] = 1.0
    head["lengths"] = data.draw(hnp.arrays(np.uint8, (2, 8), elements=st.sampled_from([0, 1, 0x11, 0x22, 0x21, 0x33])))
    head["bits"] = data.draw(hnp.arrays(np.uint32, 2, elements=st.integers(0, 1000) | st.just(2**32 - 1)))
    payload: Payload = head.tobytes() + data.draw(st.binary(max_size=300))
    try:
        codec("fedzip").peak(payload, n)
    except PayloadError:
        return
    values = codec("fedzip").decode(payload, n)
    assert values.shape == (n,)
    assert set(values.tolist()) <= {0.0, 1.0}

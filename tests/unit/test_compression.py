"""Promises of every codec: sizes, totality on any bytes, awkward values, copies, sums."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.node.lab.codecs import CODECS, codec
from shoal.protocol.base.errors import LocalError, PayloadError
from shoal.protocol.tensors.compression import Codec
from shoal.protocol.tensors.compression.blocks import BLOCK, SLAB
from shoal.protocol.tensors.compression.sparse import KEPT, Sparse

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
LARGEST = torch.finfo(torch.float32).max
SHORTER = {"fedzip"}  # whose payloads may be shorter than `bytes_for`
COARSE = {"sign", "topk", "fedzip"}  # whose errors are of the size of values
NOT_FINITE = (math.nan, math.inf, -math.inf)
vectors = hnp.arrays(
    np.float32,
    st.integers(0, 2 * BLOCK + 5),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    fill=st.floats(-1, 1, width=32),
)


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@each_codec
@given(vectors)
def test_size_is_known_beforehand(codec: Codec, array: np.ndarray) -> None:
    size, most = len(codec.encode(torch.from_numpy(array))), codec.bytes_for(len(array))
    assert size == most or (codec.name in SHORTER and size < most)


@each_codec
@given(vectors)
def test_what_encode_makes_fits_and_nothing_longer(codec: Codec, array: np.ndarray) -> None:
    n = len(array)
    assert codec.fits(len(codec.encode(torch.from_numpy(array))), n)
    assert codec.fits(codec.bytes_for(n), n)
    assert not codec.fits(codec.bytes_for(n) + 1, n)
    assert codec.fits(0, n) == (n == 0)


@each_codec
@given(vectors)
def test_peak_is_a_bound_and_what_encode_makes_is_taken(codec: Codec, array: np.ndarray) -> None:
    payload = codec.encode(torch.from_numpy(array))
    values = codec.decode(payload, len(array))
    assert values.isfinite().all()
    assert not len(values) or values.abs().max() <= codec.peak(payload, len(values))


@each_codec
@given(st.data(), st.integers(0, 9))
def test_any_bytes_are_refused_or_decoded(codec: Codec, data: st.DataObject, n: int) -> None:
    """`peak` raises PayloadError, or `decode` gives finite values within it."""
    size = codec.bytes_for(n)
    payload = data.draw(st.binary(max_size=40) | st.binary(min_size=size, max_size=size) | changed(codec, n))
    try:
        peak = codec.peak(payload, n)
    except PayloadError:
        return
    values = codec.decode(payload, n)
    assert codec.fits(len(payload), n)
    assert values.shape == (n,)
    assert values.dtype == torch.float32
    assert not n or values.abs().max() <= peak < math.inf


def changed(codec: Codec, n: int) -> st.SearchStrategy[bytes]:
    """A payload with one byte put in the place of another."""
    payload = bytes(codec.encode(normal(n)))
    place = st.integers(0, max(0, len(payload) - 1))
    return st.builds(lambda at, byte: payload[:at] + byte + payload[at + 1 :], place, st.binary(min_size=1, max_size=1))


@each_codec
@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_is_refused(codec: Codec, change: int) -> None:
    payload = bytes(codec.encode(torch.ones(5)))
    with pytest.raises(PayloadError):
        codec.peak((payload + b"\0")[: len(payload) + change], 5)


@each_codec
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK + 2])
def test_nan_and_inf_do_not_leave(codec: Codec, bad: float, at: int) -> None:
    values = torch.ones(BLOCK + 3)
    values[at] = bad
    with pytest.raises(LocalError):
        codec.encode(values)


BADLY_BEGUN = {
    **{
        name: [struct.pack("<f", bad) for bad in NOT_FINITE]
        for name in ("fp32", "int8", "uint8", "fp4", "sign", "topk", "fedzip")
    },
    "fp16": [struct.pack("<hH", 0, bits) for bits in (0x7E00, 0x7C00, 0xFC00)],
    "bf16": [struct.pack("<H", bits) for bits in (0x7FC0, 0x7F80, 0xFF80)],
}


@each_codec
@pytest.mark.parametrize("which", range(3), ids=["nan", "inf", "-inf"])
def test_nan_and_inf_do_not_enter(codec: Codec, which: int) -> None:
    bad = BADLY_BEGUN[codec.name][which]
    payload = bad + bytes(codec.encode(torch.zeros(3)))[len(bad) :]
    with pytest.raises(PayloadError):
        codec.peak(payload, 3)


@each_codec
@pytest.mark.parametrize("n", [1, 3, BLOCK, BLOCK + 1, SLAB + BLOCK + 7])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_constants_come_back(codec: Codec, n: int, value: float) -> None:
    values = torch.full((n,), value)
    back = codec.decode(codec.encode(values), n)
    sent = back != 0 if isinstance(codec, Sparse) else torch.full((n,), True)
    assert torch.equal(back[sent], values[sent])
    assert sent.sum() >= min(n, KEPT) * bool(value)


@each_codec
@pytest.mark.parametrize("size", [1e-45, 1e-39, 2.0**-126, 2.0**-117, 1e-30, 1.0, 1e30, LARGEST])
def test_no_size_of_values_is_beyond_it(codec: Codec, size: float) -> None:
    """Denormals may be lost, and nothing becomes infinite or much larger than it was."""
    values = torch.tensor([size, -size, 0.0, size / 2])
    back = codec.decode(codec.encode(values), 4)
    assert (back - values).abs().max() <= max(size * (0.75 if codec.name in COARSE else 1 / 128), 2.0**-117)


@each_codec
def test_slabs_are_encoded_as_the_same_values_alone(codec: Codec) -> None:
    step = math.lcm(codec.block, BLOCK)
    values = normal(SLAB + step + 7)
    if codec.name == "fedzip":  # one codebook for all: the same, if they are few values
        values = values.sign() * (values.abs() > 2.7)
    whole = codec.decode(codec.encode(values), len(values))
    parts = [codec.decode(codec.encode(part), len(part)) for part in values.split(step)]
    assert torch.equal(whole, torch.cat(parts))


@each_codec
@pytest.mark.parametrize("weight", [1.0, 0.3, 2.0**40])
@pytest.mark.parametrize("n", [1, BLOCK + 3, SLAB + BLOCK])
def test_adds_what_it_decodes(codec: Codec, weight: float, n: int) -> None:
    payload = codec.encode(normal(n, 1))
    total = normal(n, 2)
    expected = total.double() + weight * codec.decode(payload, n).double()
    codec.add(total, payload, weight)
    assert torch.allclose(total.double(), expected, rtol=1e-6, atol=1e-6)


@each_codec
def test_the_smallest_swarms_sum_is_within_range(codec: Codec) -> None:
    """What is added is finite, so only the sum can overflow; it does so without a word."""
    total = torch.full((3,), LARGEST)
    codec.add(total, codec.encode(torch.full((3,), LARGEST)), 2.0)
    assert total.isinf().all()


@each_codec
def test_payload_and_values_are_copies(codec: Codec) -> None:
    values = torch.ones(4)
    payload = codec.encode(values)
    values.zero_()
    buffer = bytearray(payload)
    decoded = codec.decode(memoryview(buffer), 4)
    buffer[:] = bytes(len(buffer))
    assert decoded.tolist() == [1, 1, 1, 1]


@each_codec
def test_a_payload_may_lie_anywhere_in_a_buffer(codec: Codec) -> None:
    values = normal(BLOCK + 3)
    payload = codec.encode(values)
    shifted = memoryview(b"\0" + bytes(payload))[1:]
    assert torch.equal(codec.decode(shifted, len(values)), codec.decode(payload, len(values)))
    assert codec.peak(shifted, len(values)) == codec.peak(payload, len(values))
    one, other = torch.zeros(len(values)), torch.zeros(len(values))
    codec.add(one, shifted)
    codec.add(other, payload)
    assert torch.equal(one, other)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(LocalError, match=r"'fp64'.*fp32, fp16, bf16, int8, fp4, topk, uint8, sign, fedzip"):
        codec("fp64")

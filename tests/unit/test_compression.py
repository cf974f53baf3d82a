"""Codecs: round trips within the stated bound, totality on any bytes, the awkward blocks."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from shoal.protocol.compression import CODECS, Codec, codec
from shoal.protocol.compression.blocks import BLOCK, SLAB
from shoal.protocol.compression.int8 import SMALLEST
from shoal.protocol.errors import LocalError, PayloadError

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
int8, fp32 = codec("int8"), codec("fp32")
vectors = hnp.arrays(
    np.float32,
    st.integers(0, 2 * BLOCK + 5),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    fill=st.floats(-1, 1, width=32),
)


def magnitudes(values: Tensor) -> Tensor:
    """The largest magnitude of each value's own block, value by value."""
    return torch.cat([part.abs().max().expand(len(part)) for part in values.split(BLOCK)])


@given(vectors)
def test_fp32_returns_the_very_bits(array: np.ndarray) -> None:
    back = fp32.decode(fp32.encode(torch.from_numpy(array)), len(array))
    assert back.numpy().tobytes() == array.tobytes()


def test_fp32_is_little_endian() -> None:
    assert fp32.encode(torch.tensor([1.0, -2.5])) == struct.pack("<2f", 1.0, -2.5)


@given(vectors)
def test_int8_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    back = int8.decode(int8.encode(values), len(values))
    if len(values):
        m = magnitudes(values).double()
        bound = torch.where(m < SMALLEST, m, m / 254 * (1 + 2.0**-14))
        assert ((back.double() - values.double()).abs() <= bound).all()


@given(vectors)
def test_int8_makes_no_denormals_and_keeps_what_it_made(array: np.ndarray) -> None:
    once = int8.decode(int8.encode(torch.from_numpy(array)), len(array))
    assert not ((once != 0) & (once.abs() < 2.0**-126)).any()
    assert torch.equal(int8.decode(int8.encode(once), len(once)), once)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, SMALLEST, torch.finfo(torch.float32).max])
def test_int8_is_exact_on_constant_blocks(value: float) -> None:
    values = torch.full((BLOCK + 1,), value)
    assert torch.equal(int8.decode(int8.encode(values), len(values)), values)


def test_int8_keeps_zeros_and_the_largest_value() -> None:
    values = torch.tensor([0.0, 0.3, -7.0, 0.0])
    back = int8.decode(int8.encode(values), 4)
    assert back[[0, 2, 3]].tolist() == [0.0, -7.0, 0.0]


@pytest.mark.parametrize("value", [1e-45, 1e-39, 2.0**-126, SMALLEST * 0.99])
def test_int8_sends_the_smallest_blocks_as_zeros(value: float) -> None:
    assert not int8.decode(int8.encode(torch.tensor([value, -value])), 2).any()


def test_int8_blocks_do_not_disturb_each_other() -> None:
    values = torch.cat((torch.full((BLOCK,), 1e-6), torch.full((BLOCK,), 1e6)))
    assert torch.equal(int8.decode(int8.encode(values), 2 * BLOCK), values)


def test_int8_of_several_slabs_is_that_of_its_blocks() -> None:
    values = torch.randn(SLAB + BLOCK + 7, generator=torch.Generator().manual_seed(0))
    whole = int8.decode(int8.encode(values), len(values))
    parts = [int8.decode(int8.encode(part), len(part)) for part in values.split(BLOCK)]
    assert torch.equal(whole, torch.cat(parts))


def test_int8_decodes_these_bytes_to_these_bits() -> None:
    payload = struct.pack("<f3b", 0.3, 127, -1, 64)
    assert int8.decode(payload, 3).view(torch.int32).tolist() == INT8_BITS


@each_codec
@given(vectors)
def test_size_is_known_beforehand(codec: Codec, array: np.ndarray) -> None:
    assert len(codec.encode(torch.from_numpy(array))) == codec.bytes_for(len(array))


@each_codec
@given(st.data(), st.integers(0, 9))
def test_decode_is_total(codec: Codec, data: st.DataObject, n: int) -> None:
    """Any bytes give finite values or a PayloadError."""
    payload = data.draw(st.binary(max_size=40) | st.binary(min_size=codec.bytes_for(n), max_size=codec.bytes_for(n)))
    try:
        values = codec.decode(payload, n)
    except PayloadError:
        return
    assert len(payload) == codec.bytes_for(n)
    assert values.shape == (n,)
    assert values.dtype == torch.float32
    assert values.isfinite().all()


@each_codec
@pytest.mark.parametrize("change", [-1, 1])
def test_decode_refuses_another_size(codec: Codec, change: int) -> None:
    payload = codec.encode(torch.ones(5)) + b"\0"
    with pytest.raises(PayloadError):
        codec.decode(payload[: codec.bytes_for(5) + change], 5)


@each_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_neither_side_takes_nan_or_inf(codec: Codec, bad: float) -> None:
    with pytest.raises(LocalError):
        codec.encode(torch.tensor([0.0, bad, 1.0]))
    with pytest.raises(PayloadError):  # the first value in fp32, the block's magnitude in int8
        codec.decode(struct.pack("<f", bad) + codec.encode(torch.zeros(3))[4:], 3)


@pytest.mark.parametrize("payload", [struct.pack("<fb", -1.0, 1), struct.pack("<fb", 1e-40, 1), b"\0\0\0\0\x80"])
def test_int8_refuses_what_it_never_sends(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        int8.decode(payload, 1)


@each_codec
def test_payload_and_values_are_copies(codec: Codec) -> None:
    values = torch.ones(4)
    payload = codec.encode(values)
    values.zero_()
    buffer = bytearray(payload)
    decoded = codec.decode(memoryview(buffer), 4)
    buffer[:] = bytes(len(buffer))
    assert decoded.tolist() == [1, 1, 1, 1]


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(LocalError, match=r"'fp16'.*fp32, int8"):
        codec("fp16")


INT8_BITS = [1050253722, -1155870920, 1041944376]

"""Each codec keeps the bound that it states, decodes given bytes to given bits, and refuses what it never sends."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from shoal.node.lab.codecs import codec
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors.compression import fp4, int8
from shoal.protocol.tensors.compression.blocks import BLOCK
from tests.unit.test_compression import normal, vectors

LARGEST = torch.finfo(torch.float32).max


def trip(name: str, values: Tensor) -> Tensor:
    return codec(name).decode(codec(name).encode(values), len(values))


def error(name: str, values: Tensor) -> Tensor:
    """Value by value, in fp64."""
    return (trip(name, values).double() - values.double()).abs()


def largest(values: Tensor, block: int = BLOCK) -> Tensor:
    """The largest magnitude of each value's own block, value by value."""
    parts = [part.abs().max().expand(len(part)) for part in values.split(block) if len(part)]
    return torch.cat(parts or [values]).double()


def bits(values: Tensor) -> list[int]:
    return values.view(torch.int32).tolist()


def refused(name: str, payload: bytes, n: int) -> None:
    with pytest.raises(PayloadError):
        codec(name).peak(payload, n)


# -- fp32 ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_fp32_returns_the_very_bits(array: np.ndarray) -> None:
    assert trip("fp32", torch.from_numpy(array)).numpy().tobytes() == array.tobytes()


def test_fp32_is_little_endian() -> None:
    assert codec("fp32").encode(torch.tensor([1.0, -2.5])) == struct.pack("<2f", 1.0, -2.5)


# -- fp16 ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_fp16_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    bound = torch.maximum(values.abs().double() * 2.0**-11, largest(values) * 2.0**-39).clamp(min=2.0**-127)
    assert (error("fp16", values) <= bound).all()


@given(vectors)
def test_fp16_makes_no_denormals_and_keeps_what_it_made(array: np.ndarray) -> None:
    once = trip("fp16", torch.from_numpy(array))
    assert not ((once != 0) & (once.abs() < 2.0**-126)).any()
    assert torch.equal(trip("fp16", once), once)


def test_fp16_is_as_good_for_small_and_large_blocks_as_for_one() -> None:
    values = normal(BLOCK)
    for size in (1e-20, 1e-6, 1e6, 1e30):
        assert (error("fp16", values * size) <= values.abs().double() * size * 2.0**-11 * (1 + 1e-6)).all()


def test_fp16_of_these_values_is_these_bytes() -> None:
    payload = struct.pack("<h3H", 1, 0x7600, 0xF000, 0x0000)  # times 2**(1 - 14): 3, -1, 0
    assert codec("fp16").encode(torch.tensor([3.0, -1.0, 0.0])) == payload
    assert codec("fp16").decode(payload, 3).tolist() == [3.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("exponent", "half"),
    [(-89, 0), (128, 0x7400), (0, 0x73FF), (0, 0x7801), (127, 0x7800), (0, 0), (-88, 0x7801), (0, 0x7C01)],
)
def test_fp16_refuses_what_it_never_sends(exponent: int, half: int) -> None:
    refused("fp16", struct.pack("<hH", exponent, half), 1)


# -- bf16 ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_bf16_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    assert (error("bf16", values) <= (values.abs().double() * 2.0**-8).clamp(min=2.0**-126)).all()


def test_bf16_rounds_half_to_even_and_does_not_overflow() -> None:
    values = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, LARGEST, -LARGEST])
    assert codec("bf16").encode(values) == struct.pack("<5H", 0x3F80, 0x3F82, 0x3F81, 0x7F7F, 0xFF7F)


def test_bf16_decodes_denormals_as_they_are() -> None:
    payload = struct.pack("<3H", 0x0001, 0x807F, 0x3FC0)
    assert bits(codec("bf16").decode(payload, 3)) == [0x00010000, 0x807F0000 - (1 << 32), 0x3FC00000]


# -- int8 ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_int8_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    m = largest(values)
    assert (error("int8", values) <= torch.where(m < int8.SMALLEST, m, m / 254 * (1 + 2.0**-13))).all()


@given(vectors)
def test_int8_makes_no_denormals_and_keeps_what_it_made(array: np.ndarray) -> None:
    once = trip("int8", torch.from_numpy(array))
    assert not ((once != 0) & (once.abs() < 2.0**-126)).any()
    assert torch.equal(trip("int8", once), once)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, int8.SMALLEST, LARGEST])
def test_int8_is_exact_on_constant_blocks(value: float) -> None:
    values = torch.full((BLOCK + 1,), value)
    assert torch.equal(trip("int8", values), values)


def test_int8_keeps_zeros_and_the_largest_value() -> None:
    assert trip("int8", torch.tensor([0.0, 0.3, -7.0, 0.0]))[[0, 2, 3]].tolist() == [0.0, -7.0, 0.0]


@pytest.mark.parametrize("value", [1e-45, 1e-39, 2.0**-126, int8.SMALLEST * 0.99])
def test_int8_sends_the_smallest_blocks_as_zeros(value: float) -> None:
    assert not trip("int8", torch.tensor([value, -value])).any()


@pytest.mark.parametrize("name", ["fp16", "int8", "fp4"])
def test_blocks_do_not_disturb_each_other(name: str) -> None:
    values = torch.cat((torch.full((BLOCK,), 2.0**-30), torch.full((BLOCK,), 2.0**30)))
    assert torch.equal(trip(name, values), values)


def test_int8_decodes_these_bytes_to_these_bits() -> None:
    assert bits(codec("int8").decode(struct.pack("<f3b", 0.3, 127, -1, 64), 3)) == [1050253722, -1155870920, 1041944376]


@pytest.mark.parametrize(
    "payload", [struct.pack("<fb", -1.0, 1), struct.pack("<fb", -0.0, 0), struct.pack("<fb", 1e-40, 1), b"\0\0\0\0\x80"]
)
def test_int8_refuses_what_it_never_sends(payload: bytes) -> None:
    refused("int8", payload, 1)


# -- fp4 ----------------------------------------------------------------------------------------------------


@given(vectors)
def test_fp4_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    s = largest(values)
    bound = torch.maximum(values.abs().double() / 3, s / 128) * (1 + 2.0**-18)
    assert (error("fp4", values) <= torch.where(s < fp4.SMALLEST, s, bound)).all()


@given(vectors)
def test_fp4_makes_no_denormals_and_keeps_what_it_made(array: np.ndarray) -> None:
    once = trip("fp4", torch.from_numpy(array))
    assert not ((once != 0) & (once.abs() < 2.0**-126)).any()
    assert torch.equal(trip("fp4", once), once)


@pytest.mark.parametrize("s", [1.0, 0.3, fp4.SMALLEST, LARGEST])
def test_fp4_keeps_powers_of_two_of_the_largest(s: float) -> None:
    values = torch.tensor([s, -s / 2, s / 4, -s / 8, s / 16, -s / 32, s / 64, 0.0, -s])
    assert torch.equal(trip("fp4", values), values)


def test_fp4_goes_to_the_nearest_and_half_way_to_the_smaller() -> None:
    values = torch.tensor([1, 0.751, 0.75, 0.376, 0.375, 3 / 128, 3.01 / 128, 1 / 128, -1.01 / 128])
    assert trip("fp4", values).tolist() == [1, 1, 0.5, 0.5, 0.25, 1 / 64, 1 / 32, 0, -1 / 64]


def test_fp4_of_these_values_is_these_bytes() -> None:
    payload = struct.pack("<f3B", 3.0, 0x67, 0x9F, 0x00)  # 1/2 and 1, -1/64 and -1, 0 and what is left over
    assert codec("fp4").encode(torch.tensor([3.0, 1.5, -3.0, -3 / 64, 0.0])) == payload
    assert codec("fp4").decode(payload, 5).tolist() == [3.0, 1.5, -3.0, -3 / 64, 0.0]


@pytest.mark.parametrize("codes", [b"\x08\x00", b"\x80\x00", b"\x78\x07", b"\x00\x10"])
def test_fp4_refuses_codes_that_it_never_sends(codes: bytes) -> None:
    refused("fp4", struct.pack("<f", 1.0) + codes, 3)


@pytest.mark.parametrize("s", [-1.0, -0.0, fp4.SMALLEST * 0.99])
def test_fp4_refuses_scales_that_it_never_sends(s: float) -> None:
    refused("fp4", struct.pack("<fB", s, 7), 1)

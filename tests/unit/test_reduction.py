"""The weighted mean at a chunk's owner, and how chunks are cut."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.lab.codecs import CODECS, codec
from shoal.protocol.averaging.chunks import chunk_bounds, fitting_bytes
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.wire import MAX_BULK_FRAME
from shoal.protocol.tensors.compression import Payload
from shoal.protocol.tensors.compression.fp32 import Fp32
from shoal.protocol.tensors.reduction import MeanReducer

fp32, int8 = codec("fp32"), codec("int8")


def reducer(n: int, scatter: str = "fp32", gather: str = "fp32") -> MeanReducer:
    return MeanReducer([n], codec(scatter), codec(gather))


def mean(contributions: list[tuple[int, Tensor]]) -> Tensor:
    n = len(contributions[0][1])
    total = reducer(n).open(0)
    for weight, values in contributions:
        total.add(weight, fp32.encode(values))
    return fp32.decode(total.finish(), n)


def draws(seed: int, n: int = 100) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 100)), min_size=1, max_size=8))
def test_is_the_weighted_mean(parts: list[tuple[int, int]]) -> None:
    got = mean([(weight, draws(seed)) for weight, seed in parts]).double()
    total = sum(weight for weight, _ in parts)
    expected = sum((weight * draws(seed).double() for weight, seed in parts), torch.zeros(100).double())
    assert torch.allclose(got, expected / total if total else torch.zeros(100).double(), rtol=0, atol=1e-5)


def test_no_weight_gives_zeros() -> None:
    assert not mean([(0, draws(1)), (0, draws(2))]).any()
    assert reducer(3).open(0).finish() == bytes(12)


@given(st.integers(1, 2**40))
def test_a_single_contribution_comes_back_as_it_was(weight: int) -> None:
    assert torch.equal(mean([(weight, draws(1))]), draws(1))


@given(st.integers(1, 2**40))
def test_equal_weights_cost_no_rounding(weight: int) -> None:
    assert torch.equal(mean([(weight, draws(1)), (weight, draws(2))]), (draws(1) + draws(2)) / 2)


def test_order_changes_nothing_where_sums_are_exact() -> None:
    parts = [(1, (draws(seed) * 64).round()) for seed in range(4)]
    results = [mean(list(order)) for order in itertools.permutations(parts)]
    assert all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize(
    "payload",
    [b"", bytes(8), bytes(16), struct.pack("<3f", 0, math.nan, 0), struct.pack("<3f", 0, 0, -math.inf)],
    ids=["empty", "short", "long", "nan", "inf"],
)
@pytest.mark.parametrize("weight", [0, 1])
def test_a_bad_contribution_leaves_the_sum_as_it_was(payload: bytes, weight: int) -> None:
    total, untouched = (reducer(3).open(0) for _ in range(2))
    for each in (total, untouched):
        each.add(2, fp32.encode(torch.tensor([1.0, 2.0, 3.0])))
    with pytest.raises(PayloadError):
        total.add(weight, payload)
    for each in (total, untouched):
        each.add(1, fp32.encode(torch.tensor([4.0, 5.0, 6.0])))
    assert total.finish() == untouched.finish()


def test_a_finite_contribution_that_overflows_the_sum_is_refused() -> None:
    huge = fp32.encode(torch.full((3,), torch.finfo(torch.float32).max))
    total = reducer(3).open(0)
    total.add(1, huge)
    with pytest.raises(PayloadError):
        total.add(1, huge)
    assert total.finish() == huge


def test_scatter_and_gather_codecs_may_differ() -> None:
    values = draws(1)
    total = reducer(100, "int8", "fp32").open(0)
    total.add(1, int8.encode(values))
    assert torch.equal(fp32.decode(total.finish(), 100), int8.decode(int8.encode(values), 100))
    back = reducer(100, "fp32", "int8").open(0)
    back.add(1, fp32.encode(values))
    assert back.finish() == int8.encode(values)


def test_chunks_are_apart_and_what_one_leaves_behind_is_not_in_the_next() -> None:
    chunks = MeanReducer([2, 3], fp32, fp32)
    first, second = chunks.open(0), chunks.open(1)
    first.add(1, fp32.encode(torch.ones(2)))
    second.add(5, fp32.encode(torch.zeros(3)))
    assert first.finish() == fp32.encode(torch.ones(2))
    third, fourth = chunks.open(0), chunks.open(1)
    third.add(1, fp32.encode(torch.full((2,), 3.0)))
    assert third.finish() == fp32.encode(torch.full((2,), 3.0))
    fourth.add(1, fp32.encode(torch.ones(3)))
    assert second.finish() == bytes(12)
    assert fourth.finish() == fp32.encode(torch.ones(3))


class Wary(Fp32):
    """It takes only what was looked at."""

    def __init__(self) -> None:
        self.looked_at: set[bytes] = set()

    def peak(self, payload: Payload, n: int) -> float:
        found = super().peak(payload, n)
        self.looked_at.add(bytes(payload))
        return found

    def decode(self, payload: Payload, n: int, out: Tensor | None = None) -> Tensor:
        assert bytes(payload) in self.looked_at
        return super().decode(payload, n, out)

    def add(self, total: Tensor, payload: Payload, weight: float = 1.0) -> None:
        assert bytes(payload) in self.looked_at
        super().add(total, payload, weight)


def test_nothing_is_added_that_was_not_looked_at() -> None:
    total = MeanReducer([3], Wary(), fp32).open(0)
    for value in (1.0, 2.0, 6.0):
        total.add(1, fp32.encode(torch.full((3,), value)))
    assert total.finish() == fp32.encode(torch.full((3,), 3.0))


@pytest.mark.parametrize("name", CODECS)
def test_what_a_contribution_can_be_is_told_by_its_size(name: str) -> None:
    """By the scatter codec's, of the chunk in question."""
    scatter, sizes = codec(name), (5000, 300)
    chunks = MeanReducer(sizes, scatter, fp32)
    for chunk, size in enumerate(sizes):
        assert chunks.fits(chunk, len(scatter.encode(draws(1, size))))
        assert chunks.fits(chunk, scatter.bytes_for(size))
        assert not chunks.fits(chunk, scatter.bytes_for(size) + 1)
        assert not chunks.fits(chunk, 0)


@given(st.integers(0, 10_000), st.integers(4, 4096), st.sampled_from([1, 3, 1024]))
def test_chunks_cover_the_vector_in_whole_blocks(size: int, chunk_bytes: int, block: int) -> None:
    bounds = chunk_bounds(size, chunk_bytes, block)
    covered = [i for start, stop in bounds for i in range(start, stop)]
    assert covered == list(range(size))
    assert all(start < stop for start, stop in bounds)
    assert all((stop - start) % block == 0 for start, stop in bounds[:-1])
    assert all(4 * (stop - start) <= max(chunk_bytes, 4 * block) for start, stop in bounds)


@pytest.mark.parametrize(
    ("mib", "name", "chunk"),
    [
        (1, "fp32", 0.25),
        (16, "fp32", 0.5),
        (64, "fp32", 2),
        (256, "fp32", 4),
        (16, "int8", 0.5),
        (256, "int8", 8),
        (16, "topk", 0.5),
    ],
)
def test_chunks_fit_the_vector_and_the_codec(mib: int, name: str, chunk: float) -> None:
    """Enough of them to keep all busy, none so long that others wait for it, none so short that it costs more."""
    assert fitting_bytes(mib << 18, codec(name).bytes_for) == chunk * (1 << 20)


@pytest.mark.parametrize("name", CODECS)
@given(st.integers(1, 1 << 40))
def test_a_fitting_chunk_can_be_sent(name: str, size: int) -> None:
    chunk = fitting_bytes(size, codec(name).bytes_for)
    assert 4096 <= chunk <= 8 << 20
    assert codec(name).bytes_for(chunk // 4) <= MAX_BULK_FRAME

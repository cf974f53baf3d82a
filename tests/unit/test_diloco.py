"""Properties of DiLoCo's two pure functions; in floating point only those marked so hold exactly."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.diloco import outer_step, pseudo_gradient

EPSILON = 2.0**-24  # half a unit in the last place of 1 in fp32
floats = st.floats(-1e4, 1e4, width=32)


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain(theta: Tensor, delta: Tensor) -> Tensor:
    """The outer step that only averages: lr 1, no momentum."""
    return outer_step(theta, torch.zeros_like(theta), delta, lr=1.0, momentum_factor=0.0)[0]


@given(st.lists(st.tuples(st.integers(-(2**20), 2**20), st.integers(-(2**20), 2**20)), min_size=1))
def test_one_worker_gets_its_own_weights_back_where_the_subtraction_is_exact(pairs: list[tuple[int, int]]) -> None:
    """Numbers on a common grid of 2**-20: differences are exact, and DiLoCo of one worker is plain AdamW."""
    start, end = (torch.tensor(each, dtype=torch.float32) * 2.0**-20 for each in zip(*pairs, strict=True))
    assert torch.equal(plain(start, pseudo_gradient(start, end)), end)


@given(st.floats(2.0**-100, 2.0**100, width=32), st.floats(0.5, 2, width=32))
def test_one_worker_gets_its_own_weights_back_within_a_factor_of_two(end: float, ratio: float) -> None:
    """Sterbenz: if neither is more than twice the other, fp32 subtracts them without rounding."""
    start = torch.tensor([end]) * ratio
    end_ = torch.tensor([end])
    if start <= 2 * end_ and end_ <= 2 * start:
        assert torch.equal(plain(start, pseudo_gradient(start, end_)), end_)


@given(floats, floats)
def test_one_worker_elsewhere_loses_less_than_the_roundings_of_delta_and_of_the_result(a: float, b: float) -> None:
    """In general start - fl(start - end) is not end, in any arithmetic that sends only the difference."""
    start, end = torch.tensor([a]), torch.tensor([b])
    delta = pseudo_gradient(start, end)
    error = (plain(start, delta).double() - end.double()).abs()
    assert error <= EPSILON * (delta.double().abs() + 2 * end.double().abs()) + 2.0**-149


def test_one_inner_sgd_step_and_plain_averaging_is_data_parallel_sgd() -> None:
    theta, gradients, lr = draws(1, 50), draws(2, 4, 50), 0.1
    ends = theta - lr * gradients
    delta = pseudo_gradient(theta, ends).mean(0)
    assert torch.allclose(plain(theta, delta), theta - lr * gradients.mean(0), rtol=0, atol=4e-7)


def test_order_of_workers_changes_nothing() -> None:
    """Bit for bit if the sums are exact; elsewhere the roster's order decides the last bit, the same for all."""
    theta = (draws(3, 40) * 256).round() / 256
    ends = (draws(4, 4, 40) * 256).round() / 256
    results = [
        plain(theta, sum((pseudo_gradient(theta, ends[i]) for i in order), torch.zeros(40)) / 4)
        for order in itertools.permutations(range(4))
    ]
    assert all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.4, 0.5)])
def test_is_nesterov_as_torch_defines_it(lr: float, momentum: float) -> None:
    weight = torch.nn.Parameter(draws(5, 64))
    reference = torch.optim.SGD([weight], lr=lr, momentum=momentum, nesterov=momentum > 0)
    theta, b = weight.detach().clone(), torch.zeros(64)
    for round in range(6):
        delta = draws(10 + round, 64)
        weight.grad = delta.clone()
        reference.step()
        theta, b = outer_step(theta, b, delta, lr=lr, momentum_factor=momentum)
        assert torch.allclose(theta, weight.detach(), rtol=1e-6, atol=1e-6)


def test_each_operation_rounds_once_on_its_own() -> None:
    """The same step in numpy scalars, one IEEE operation at a time: a fused multiply-add would differ."""
    theta, b, delta = draws(6, 500), draws(7, 500), draws(8, 500)
    lr, mu = torch.tensor(0.7).numpy(), torch.tensor(0.9).numpy()
    got_theta, got_b = outer_step(theta, b, delta, lr=0.7, momentum_factor=0.9)
    for i in range(500):
        t, m, d = theta.numpy()[i], b.numpy()[i], delta.numpy()[i]
        m = m * mu + d
        assert got_b.numpy()[i] == m
        assert got_theta.numpy()[i] == t - (m * mu + d) * lr


def test_arguments_stay_as_they_are_and_blocks_may_be_stepped_apart() -> None:
    theta, b, delta = draws(6, 100), draws(7, 100), draws(8, 100)
    copies = [each.clone() for each in (theta, b, delta)]
    whole = outer_step(theta, b, delta, lr=0.7, momentum_factor=0.9)
    assert all(torch.equal(left, right) for left, right in zip((theta, b, delta), copies, strict=True))
    parts = [
        outer_step(theta[cut], b[cut], delta[cut], lr=0.7, momentum_factor=0.9)
        for cut in (slice(0, 33), slice(33, 100))
    ]
    for index in (0, 1):
        assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


def test_pseudo_gradient_is_fp32_for_half_precision_weights() -> None:
    start, end = torch.tensor([1.0]).bfloat16(), torch.tensor([1.0 + 2.0**-7]).bfloat16()
    assert pseudo_gradient(start, end).dtype == torch.float32
    assert pseudo_gradient(start, end).item() == -(2.0**-7)

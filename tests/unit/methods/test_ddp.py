"""DDP: torch's AdamW, to the same bits however the vector is cut, and a mean of gradients for each step."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.ddp import DDP, FIRST, SECOND, adamw_step, clip_factor, power, root
from shoal.node.training.methods.method import PARAMETERS, Answer
from shoal.protocol.base.errors import LocalError
from tests.unit.methods.mean_kit import mean_of_all

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1
State = tuple[Tensor, Tensor, Tensor]


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def begun(theta: Tensor) -> State:
    return theta, torch.zeros_like(theta), torch.zeros_like(theta)


def stepped(state: State, gradient: Tensor, step: int, lr: float = 0.01) -> State:
    return adamw_step(*state, gradient, step=step, lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY)


# -- the rule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "betas", "eps", "decay"),
    [(0.01, (0.9, 0.95), 1e-8, 0.1), (1e-3, (0.9, 0.999), 1e-8, 0.01), (0.003, (0.0, 0.5), 1e-4, 0.0)],
)
def test_fifty_steps_are_those_of_torch(lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
    """Within 1e-6 of the largest weight, and of the vector's length."""
    weight = torch.nn.Parameter(draws(1, 1000))
    reference = torch.optim.AdamW([weight], lr=lr, betas=betas, eps=eps, weight_decay=decay, foreach=False, fused=False)
    state = begun(weight.detach().clone())
    for step in range(1, 51):
        weight.grad = draws(100 + step, 1000)
        reference.step()
        state = adamw_step(*state, weight.grad, step=step, lr=lr, betas=betas, eps=eps, weight_decay=decay)
    off = (state[0].double() - weight.detach().double()).abs()
    print(f"largest difference {off.max():.2e}, relative {off.norm() / weight.detach().norm():.2e}")
    assert off.norm() <= 1e-6 * weight.detach().norm()
    assert off.max() <= 1e-6 * weight.detach().abs().max()
    assert not torch.equal(state[0], draws(1, 1000))


def test_norms_gains_do_not_decay_wherever_blocks_are_cut() -> None:
    """Each number as torch has it in a group of its own, without decay."""
    gains = ((0, 3), (17, 25), (39, 40))
    plain, bare = (DDP(lambda step: 0.01, BETAS, EPS, decay) for decay in (DECAY, 0.0))
    method, gradient = DDP(lambda step: 0.01, BETAS, EPS, DECAY, undecayed=gains), draws(11, 40)
    agreed, _ = method.begin(draws(12, 40))
    expected, without = (
        each.apply(0, agreed, Answer(gradient, 1, number=1))[PARAMETERS].clone() for each in (plain, bare)
    )
    for start, stop in gains:
        expected[start:stop] = without[start:stop]
    assert not torch.equal(expected, without)
    for cuts in ([0, 40], [0, 1, 2, 20, 21, 40], [0, 17, 25, 39, 40]):
        made = [
            method.apply(
                0,
                {name: vector[start:stop] for name, vector in agreed.items()},
                Answer(gradient[start:stop], 1, number=1, start=start),
            )[PARAMETERS]
            for start, stop in pairwise(cuts)
        ]
        assert torch.equal(torch.cat(made), expected)


def test_the_first_step_goes_by_the_learning_rate_whatever_the_gradient() -> None:
    """u / sqrt(v), both corrected, is the sign; powers of two, so that nothing but eps rounds."""
    state = adamw_step(
        *begun(torch.tensor([1.0, 1.0, 2.0])),
        torch.tensor([4.0, -0.25, 0.0]),
        step=1,
        lr=0.25,
        betas=(0.5, 0.75),
        eps=2.0**-60,
        weight_decay=0.5,
    )
    assert state[0].tolist() == [0.875 - 0.25, 0.875 + 0.25, 1.75]
    assert state[1].tolist() == [2, -0.125, 0]
    assert state[2].tolist() == [4, 0.015625, 0]


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 5))
@settings(max_examples=40)
def test_blocks_may_be_stepped_apart_to_the_bit(cuts: list[int], steps: int) -> None:
    edges = sorted({0, 300, *cuts})
    whole = begun(draws(2, 300))
    parts = [begun(draws(2, 300)[start:stop]) for start, stop in pairwise(edges)]
    for step in range(1, steps + 1):
        gradient = draws(100 + step, 300)
        whole = stepped(whole, gradient, step)
        parts = [
            stepped(part, gradient[start:stop], step)
            for part, start, stop in zip(parts, edges, edges[1:], strict=False)
        ]
    for index in range(3):
        assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


def test_each_operation_rounds_once_on_its_own() -> None:
    """The same step in numpy scalars, one IEEE operation at a time."""
    theta, first, second, gradient = draws(3, 500), draws(4, 500), draws(5, 500).abs(), draws(6, 500)
    got = stepped((theta, first, second), gradient, 7)
    f = np.float32
    for i in range(500):
        t, u, v, g = (each.numpy()[i] for each in (theta, first, second, gradient))
        u = u * f(0.9) + g * f(1 - 0.9)
        v = v * f(0.95) + g * g * f(1 - 0.95)
        scale = np.sqrt(v) * f(1 / sqrt(1 - power(0.95, 7))) + f(EPS)
        t = t * f(1 - 0.01 * DECAY) - u / scale * f(0.01 / (1 - power(0.9, 7)))
        assert [each.numpy()[i] for each in got] == [t, u, v]


def test_arguments_stay_as_they_are() -> None:
    state, gradient = (draws(3, 50), draws(4, 50), draws(5, 50).abs()), draws(6, 50)
    copies = [each.clone() for each in (*state, gradient)]
    stepped(state, gradient, 3)
    assert all(torch.equal(left, right) for left, right in zip((*state, gradient), copies, strict=True))


@given(st.lists(st.floats(0, width=32, allow_infinity=False), max_size=40))
def test_a_root_is_rounded_once(values: list[float]) -> None:
    """Through double precision it is, too: a root never lies so near the middle of two numbers of fp32."""
    expected = torch.tensor([sqrt(value) for value in values], dtype=torch.float64).float()
    assert torch.equal(root(torch.tensor(values, dtype=torch.float32)), expected)


def test_many_roots_are_rounded_once() -> None:
    values = draws(10, 100_000).abs()
    assert torch.equal(root(values), torch.tensor([sqrt(value) for value in values.tolist()]).float())


@given(st.floats(0, 1), st.integers(0, 10_000))
def test_a_power_is_a_power(base: float, exponent: int) -> None:
    """Each multiplication doubles the error and adds half a unit in the last place."""
    assert power(base, exponent) == pytest.approx(base**exponent, rel=2.0**-52 * (exponent + 1), abs=1e-300)


def test_powers_are_multiplied_out_in_this_order() -> None:
    assert power(0.9, 0) == 1
    assert power(0.9, 1) == 0.9
    assert power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9))
    assert power(0.9, 6) == (0.9 * 0.9) * ((0.9 * 0.9) * (0.9 * 0.9))


# -- clipping -----------------------------------------------------------------------------------------------


def test_only_what_is_longer_than_the_limit_is_clipped() -> None:
    assert [clip_factor(norm, 1.0) for norm in (0.0, 0.5, 1.0, 4.0)] == [1, 1, 1, 0.25]
    for norm in (float("nan"), float("inf")):
        with pytest.raises(LocalError, match="diverged"):
            clip_factor(norm, 1.0)


@given(st.floats(1e-30, 1e30), st.floats(1e-3, 1e3))
def test_clipped_is_at_most_the_limit_and_never_longer_than_before(norm: float, limit: float) -> None:
    factor = clip_factor(norm, limit)
    assert 0 < factor <= 1
    assert norm * factor <= limit * (1 + 1e-15)


# -- the method ---------------------------------------------------------------------------------------------


def method(clip: float | None = None) -> DDP:
    return DDP(lambda step: 0.01 / max(1, step), BETAS, EPS, DECAY, clip)


def driven(gradients: list[Tensor], method: DDP, steps: int = 5) -> State:
    """The state of members with these gradients, which grow with each step; it must be the same for all."""
    agreed, private = method.begin(draws(7, 40))
    thetas = [agreed[PARAMETERS]] * len(gradients)
    for step in range(1, steps + 1):
        assert method.launches(step) == (0,)
        sent = [
            method.contribute(0, gradient * step + 0.1 * theta, agreed, private)
            for gradient, theta in zip(gradients, thetas, strict=True)
        ]
        answer = Answer(mean_of_all([each.payload for each in sent]), len(sent), number=step)
        agreed = method.apply(0, agreed, answer)
        thetas = [method.merge(0, theta, agreed, private, answer).theta for theta in thetas]
        assert all(torch.equal(theta, agreed[PARAMETERS]) for theta in thetas)
    return agreed[PARAMETERS], agreed[FIRST], agreed[SECOND]


def test_peers_driven_by_hand_follow_the_rule() -> None:
    gradients = list(draws(8, 3, 40))
    state = begun(draws(7, 40))
    for step in range(1, 6):
        mean = mean_of_all([gradient * step + 0.1 * state[0] for gradient in gradients])
        state = stepped(state, mean, step, lr=0.01 / step)
    assert all(torch.equal(got, want) for got, want in zip(driven(gradients, method()), state, strict=True))


@pytest.mark.parametrize("members", [2, 3, 8])
def test_members_with_equal_gradients_are_as_one(members: int) -> None:
    """Bit for bit if there are two; the sum of more is rounded on its way to their mean."""
    gradient = draws(8, 40)
    for alone, together in zip(driven([gradient], method()), driven([gradient] * members, method()), strict=True):
        assert torch.equal(alone, together) if members == 2 else torch.allclose(alone, together, rtol=1e-6, atol=0)


def test_a_contribution_is_clipped_and_so_the_mean_is_within_the_limit() -> None:
    agreed, private = method(clip=1.0).begin(torch.zeros(40))
    sent = [method(clip=1.0).contribute(0, 5 * each, agreed, private).payload for each in draws(9, 6, 40)]
    assert all(each.norm().item() == pytest.approx(1, rel=1e-6) for each in sent)
    assert mean_of_all(sent).norm() <= 1
    small = torch.full((40,), 0.01)
    assert torch.equal(method(clip=1.0).contribute(0, small, agreed, private).payload, small)
    with pytest.raises(LocalError, match="diverged"):
        method(clip=1.0).contribute(0, torch.tensor([float("inf")]), agreed, private)


def test_an_answer_without_its_number_is_not_taken_for_the_first() -> None:
    agreed, _ = method().begin(torch.zeros(4))
    with pytest.raises(AssertionError):
        method().apply(0, agreed, Answer(torch.ones(4), 1))

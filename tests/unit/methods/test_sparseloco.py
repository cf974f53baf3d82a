"""SparseLoCo: the numbers of a small example, what is never lost, and its two kinds of mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.diloco import DiLoCo, outer_step, pseudo_gradient
from shoal.node.training.methods.method import PARAMETERS, Answer, Method
from shoal.node.training.methods.sparseloco import (
    ERROR,
    SparseLoCo,
    compress,
    descend,
)
from shoal.protocol.tensors.compression import Codec, codec
from shoal.protocol.tensors.compression.topk import TopK
from shoal.protocol.tensors.reduction import MeanReducer
from tests.unit.methods.mean_kit import mean_of_all

one_of_four = TopK(4, 1)

seeds = st.integers(0, 2**32)


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sparse(seed: int, members: int = 5, n: int = 40) -> list[Tensor]:
    """Vectors of which a third was sent."""
    kept = draws(seed + 1, members, n) > 0.4
    return list(torch.where(kept, draws(seed, members, n), 0))


# -- the rule -----------------------------------------------------------------------------------------------


def test_three_rounds_of_the_same_change_send_and_keep_these_values() -> None:
    delta, error = torch.tensor([0.4, -1, 0.2, 0.1]), torch.zeros(4)
    for expected_sent, expected_error in [
        ([0, -1, 0, 0], [0.4, 0, 0.2, 0.1]),
        ([0, -1, 0, 0], [0.78, 0, 0.39, 0.195]),
        ([1.141, 0, 0, 0], [0, -1, 0.5705, 0.28525]),
    ]:
        sent, error = compress(one_of_four, error, delta, 0.95)
        assert sent.tolist() == pytest.approx(expected_sent, abs=1e-6)
        assert error.tolist() == pytest.approx(expected_error, abs=1e-6)


@given(seeds, st.sampled_from(["topk", "int8", "fp4", "fp16"]))
@settings(max_examples=30)
def test_without_decay_what_was_sent_and_the_error_are_all_that_was_given(seed: int, name: str) -> None:
    n, rounds = 500, 6
    error, balance = torch.zeros(n), torch.zeros(n, dtype=torch.float64)
    for round in range(rounds):
        delta = draws(seed + round, n)
        sent, error = compress(codec(name), error, delta, 1.0)
        balance += delta.double() - sent.double()
    assert torch.allclose(balance, error.double(), rtol=0, atol=1e-4)


def test_the_arguments_stay_as_they_are_so_a_round_that_is_lost_can_be_forgotten() -> None:
    error, delta = draws(1, 64), draws(2, 64)
    copies = error.clone(), delta.clone()
    first, again = compress(TopK(16, 2), error, delta, 0.95), compress(TopK(16, 2), error, delta, 0.95)
    assert torch.equal(error, copies[0])
    assert torch.equal(delta, copies[1])
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_eta_counts_once() -> None:
    assert descend(torch.tensor([1.0]), torch.tensor([0.5]), 0.5).item() == 0.75


def test_all_sent_exactly_is_diloco_without_momentum() -> None:
    theta = reference = draws(3, 200)
    momentum, errors = torch.zeros(200), [torch.zeros(200)] * 3
    for round in range(4):
        deltas = [draws(100 * round + member, 200) for member in range(3)]
        pairs = [compress(codec("fp32"), error, delta, 0.95) for error, delta in zip(errors, deltas, strict=True)]
        errors = [error for _, error in pairs]
        assert not any(error.any() for error in errors)
        theta = descend(theta, mean_of_all([sent for sent, _ in pairs]), 0.7)
        reference, momentum = outer_step(reference, momentum, mean_of_all(deltas), lr=0.7, momentum_factor=0.0)
        assert torch.equal(theta, reference)


# -- the mean -----------------------------------------------------------------------------------------------


def test_a_value_that_was_not_sent_is_a_zero() -> None:
    sent = [torch.tensor([3.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])]
    assert mean_of_all(sent).tolist() == [2, 1, 0]


@given(seeds, st.lists(st.integers(1, 2**20), min_size=5, max_size=5))
@settings(max_examples=30)
def test_the_mean_over_all_is_the_owners_to_the_bit(seed: int, weights: list[int]) -> None:
    total = MeanReducer([40], codec("fp32"), codec("fp32")).open(0)
    sent = sparse(seed)
    for weight, vector in zip(weights, sent, strict=True):
        total.add(weight, codec("fp32").encode(vector))
    assert torch.equal(mean_of_all(sent, weights), codec("fp32").decode(total.finish(), 40))


# -- the method ---------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([codec("topk"), TopK(16, 3), codec("fp32")]), st.integers(1, 9000))
@settings(max_examples=30)
def test_its_codecs_take_their_own_values_for_what_they_are(seed: int, codec: Codec, n: int) -> None:
    once = codec.decode(codec.encode(draws(seed, n)), n)
    assert torch.equal(codec.decode(codec.encode(once), n), once)


def run(method: Method, train: Callable[[Tensor, int, int], Tensor], members: int, steps: int) -> list[Tensor]:
    """The agreed parameters after each exchange, everybody being in it, and the errors in the end."""
    agreed, private = method.begin(torch.zeros(64))
    privates, thetas, seen = [private] * members, [agreed[PARAMETERS]] * members, []
    for step in range(1, steps + 1):
        thetas = [train(theta, step, member) for member, theta in enumerate(thetas)]
        for part in method.launches(step):
            sent = [
                method.contribute(part, theta.clone(), agreed, private)
                for theta, private in zip(thetas, privates, strict=True)
            ]
            answer = Answer(mean_of_all([each.payload for each in sent]), members)
            agreed = method.apply(part, agreed, answer)
            merged = [
                method.merge(part, theta, agreed, each.private, answer)
                for theta, each in zip(thetas, sent, strict=True)
            ]
            thetas, privates = [each.theta for each in merged], [each.private for each in merged]
            seen.append(agreed[PARAMETERS])
    return seen


def walk(theta: Tensor, step: int, member: int) -> Tensor:
    return theta - 0.1 * draws(1000 * step + member, 64)


def test_peers_driven_by_hand_follow_the_rule() -> None:
    topk, theta, errors = TopK(16, 2), torch.zeros(64), [torch.zeros(64)] * 3
    expected = []
    for round in range(4):
        ends = []
        for member in range(3):
            end = theta
            for step in (3 * round + 1, 3 * round + 2, 3 * round + 3):
                end = walk(end, step, member)
            ends.append(end)
        pairs = [
            compress(topk, error, pseudo_gradient(theta, end), 0.9) for error, end in zip(errors, ends, strict=True)
        ]
        errors = [error for _, error in pairs]
        theta = descend(theta, mean_of_all([sent for sent, _ in pairs]), 0.5)
        expected.append(theta)
    assert all(
        torch.equal(got, want)
        for got, want in zip(run(SparseLoCo(3, 0.5, 0.9, topk), walk, 3, 12), expected, strict=True)
    )


def test_the_method_that_sends_all_is_diloco_without_momentum() -> None:
    dense = run(SparseLoCo(2, 0.7, 0.95, codec("fp32")), walk, 3, 8)
    assert all(torch.equal(a, b) for a, b in zip(dense, run(DiLoCo(2, 0.7, 0.0), walk, 3, 8), strict=True))
    assert len(dense) == 4


def test_a_contribution_that_is_not_counted_leaves_the_error_with_its_peer() -> None:
    method = SparseLoCo(1, 0.7, 0.95, one_of_four)
    agreed, private = method.begin(torch.zeros(4))
    first = method.contribute(0, -torch.tensor([0.4, -1, 0.2, 0.1]), agreed, private)
    assert first.payload.tolist() == [0, -1, 0, 0]
    assert not private[ERROR].any()
    again = method.contribute(0, -torch.tensor([0.4, -1, 0.2, 0.1]), agreed, private)
    assert torch.equal(again.payload, first.payload)
    later = method.contribute(0, -torch.tensor([0.4, -1, 0.2, 0.1]), agreed, first.private)
    assert later.private[ERROR].tolist() == pytest.approx([0.78, 0, 0.39, 0.195], abs=1e-6)

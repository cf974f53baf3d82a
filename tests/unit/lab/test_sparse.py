"""Values that are not sent are remembered, by error feedback, DGC or EF21; and the mean over the senders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.lab.codecs import CODECS, codec
from shoal.node.lab.sparse import Momentum, Union, difference, mean_of_senders, union_of, with_momentum
from shoal.node.training.methods.sparseloco import compress
from shoal.protocol.tensors.compression import Codec
from shoal.protocol.tensors.compression.topk import TopK
from tests.unit.methods.mean_kit import mean_of_all
from tests.unit.methods.test_sparseloco import draws, seeds
from tests.unit.test_compression import normal

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
one_of_four = TopK(4, 1)


def close(values: Tensor, expected: list[float]) -> bool:
    return torch.allclose(values, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


def test_one_bit_adam_keeps_the_error_of_the_signs() -> None:
    sent, error = compress(codec("sign"), torch.zeros(2), torch.tensor([3.0, -1.0]), decay=1.0)
    assert sent.tolist() == [2, -2]
    assert error.tolist() == [1, 1]


@each_codec
def test_nothing_is_lost_without_decay(codec: Codec) -> None:
    n, error = 5000, torch.zeros(5000)
    whole, arrived = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for seed in range(5):
        update = normal(n, seed)
        sent, error = compress(codec, error, update, decay=1.0)
        whole += update
        arrived += sent
    assert torch.allclose(arrived + error, whole, rtol=0, atol=1e-4)


def test_dgc_forgets_what_it_sent() -> None:
    memory = Momentum(torch.tensor([0.1, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.4, 0.0]))
    payload, memory = with_momentum(one_of_four, memory, torch.tensor([0.1, -1, 0.2, 0.3]), momentum=0.5)
    assert close(one_of_four.decode(payload, 4), [0, -1, 0, 0])
    assert close(memory.velocity, [0.15, 0, 0.2, 0.3])
    assert close(memory.unsent, [0.15, 0, 0.6, 0.3])


def test_dgc_that_sends_all_is_sgd_with_momentum() -> None:
    memory, velocity = Momentum.of(torch.zeros(9)), torch.zeros(9)
    for seed in range(4):
        velocity = normal(9, seed) + 0.9 * velocity
        payload, memory = with_momentum(codec("fp32"), memory, normal(9, seed), masking=False)
        assert torch.equal(codec("fp32").decode(payload, 9), velocity)
        assert not memory.unsent.any()


def test_dgc_that_sends_all_with_masking_is_sgd() -> None:
    memory = Momentum.of(torch.zeros(9))
    for seed in range(3):
        payload, memory = with_momentum(codec("fp32"), memory, normal(9, seed))
        assert torch.equal(codec("fp32").decode(payload, 9), normal(9, seed))


def test_ef21_takes_these_steps() -> None:
    """f = (x1**2 + 2 x2**2) / 2, the largest of two, step 0.2."""
    topk = TopK(2, 1)
    x = torch.tensor([1.0, 1.0])
    _, state = difference(topk, torch.zeros(2), x * torch.tensor([1.0, 2.0]))
    assert state.tolist() == [0, 2]
    for position, expected in (([1, 0.6], [1.0, 2]), ([0.8, 0.2], [1, 0.4])):
        x = x - 0.2 * state
        assert close(x, position)
        _, state = difference(topk, state, x * torch.tensor([1.0, 2.0]))
        assert close(state, expected)


def test_ef21_that_sends_all_is_the_gradient() -> None:
    state = normal(9, 1)
    payload, state = difference(codec("fp32"), state, torch.zeros(9))
    assert not state.any()
    assert torch.equal(codec("fp32").decode(payload, 9), -normal(9, 1))


@pytest.mark.parametrize("name", ["topk", "sign", "fedzip", "int8"])
def test_ef21_arrives_at_a_gradient_that_stays(name: str) -> None:
    gradient, state = normal(300), torch.zeros(300)
    for _ in range(60):
        _, state = difference(codec(name), state, gradient)
    assert (state - gradient).norm() < 0.1 * gradient.norm()


# -- the authors' mean, and the union -----------------------------------------------------------------------


def test_a_value_that_was_not_sent_does_not_count_among_the_senders() -> None:
    sent = [torch.tensor([3.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])]
    assert mean_of_senders(sent, [each != 0 for each in sent]).tolist() == [2, 2, 0]


def test_a_zero_that_was_sent_counts_among_the_senders() -> None:
    sent = [torch.tensor([0.0]), torch.tensor([2.0])]
    assert mean_of_senders(sent, [torch.tensor([True]), torch.tensor([True])]).item() == 1


@given(seeds)
@settings(max_examples=30)
def test_the_means_are_one_where_everybody_sent(seed: int) -> None:
    sent = list(draws(seed, 4, 40))
    supports = [torch.ones(40, dtype=torch.bool)] * 4
    assert torch.equal(mean_of_senders(sent, supports), mean_of_all(sent))


def test_the_union_of_members_has_these_sizes() -> None:
    assert union_of(2, 4, 1) == Union(1.75, 2)
    assert union_of(3, 4, 4) == Union(4, 4)
    for members, greatest in ((1, 64), (8, 512), (100, 4096)):
        union = union_of(members, 4096, 64)
        assert union.greatest == greatest
        assert union.expected == pytest.approx(4096 * (1 - (63 / 64) ** members), rel=1e-12)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 64))
def test_the_union_is_no_less_than_one_members_and_no_more_than_the_greatest(
    members: int, kept: int, more: int
) -> None:
    block = kept + more
    union = union_of(members, block, kept)
    assert kept <= union.greatest <= block
    assert kept - 1e-9 <= union.expected <= union.greatest + 1e-9


def test_the_expected_union_is_that_of_independent_values() -> None:
    """Normal values, so that every place is as likely: within 2% over 64 blocks."""
    members, block, kept = 6, 256, 16
    sent = [TopK(block, kept).decode(TopK(block, kept).encode(x), 64 * block) for x in draws(5, members, 64 * block)]
    union = torch.stack([each != 0 for each in sent]).any(dim=0).sum().item() / 64
    assert union == pytest.approx(union_of(members, block, kept).expected, rel=0.02)
    assert union <= union_of(members, block, kept).greatest

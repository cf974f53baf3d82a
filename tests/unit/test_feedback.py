"""What is not sent is remembered: the rules of SparseLoCo, 1-bit Adam, DGC and EF21, with their papers' numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.protocol.compression import CODECS, Codec, codec
from shoal.protocol.compression.feedback import Momentum, difference, with_feedback, with_momentum
from shoal.protocol.compression.topk import TopK
from tests.unit.test_compression import normal

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
one_of_four = TopK(4, 1)


def close(values: Tensor, expected: list[float]) -> bool:
    return torch.allclose(values, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


def test_sparseloco_sends_what_it_kept() -> None:
    """Chunk 4, k = 1, decay 0.95, the same change each round."""
    update, error = torch.tensor([0.4, -1, 0.2, 0.1]), torch.zeros(4)
    sent = []
    for expected in ([0.4, 0, 0.2, 0.1], [0.78, 0, 0.39, 0.195], [0, -1, 0.5705, 0.28525]):
        payload, error = with_feedback(one_of_four, error, update, 0.95)
        assert close(error, expected)
        sent.append(one_of_four.decode(payload, 4))
    assert close(sent[0], [0, -1, 0, 0])
    assert close(sent[1], [0, -1, 0, 0])
    assert close(sent[2], [1.141, 0, 0, 0])


def test_one_bit_adam_keeps_the_error_of_the_signs() -> None:
    payload, error = with_feedback(codec("sign"), torch.zeros(2), torch.tensor([3.0, -1.0]))
    assert codec("sign").decode(payload, 2).tolist() == [2, -2]
    assert error.tolist() == [1, 1]


@each_codec
def test_nothing_is_lost_without_decay(codec: Codec) -> None:
    n, error = 5000, torch.zeros(5000)
    given, sent = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for seed in range(5):
        update = normal(n, seed)
        payload, error = with_feedback(codec, error, update)
        given += update
        sent += codec.decode(payload, n)
    assert torch.allclose(sent + error, given, rtol=0, atol=1e-4)


def test_an_update_that_was_not_counted_leaves_the_old_error() -> None:
    error, update = normal(4, 1), normal(4, 2)
    kept = error.clone(), update.clone()
    first = with_feedback(one_of_four, error, update)
    assert torch.equal(error, kept[0])
    assert torch.equal(update, kept[1])
    again = with_feedback(one_of_four, error, update)
    assert first[0] == again[0]
    assert torch.equal(first[1], again[1])


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

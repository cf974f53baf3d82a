"""Inner training: reproducible, can be stopped and resumed; and the result of a round of DiLoCo."""

from __future__ import annotations

import pytest
import torch

from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.methods.diloco import outer_step, pseudo_gradient
from shoal.node.training.trainer.inner import InnerStep, InnerTrainer
from shoal.protocol.base.ids import NO_DIGEST

MANIFEST = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=24, context=16),
    method=MethodSpec(inner_steps=5, batch=3, inner_lr=1e-2, warmup_steps=2),
)
TEXT = torch.frombuffer(bytearray(b"the quick brown fox jumps over the lazy dog. " * 40), dtype=torch.uint8)
CORPUS = Corpus(TEXT, TEXT, NO_DIGEST, 1, 0)


def trainer(manifest: Manifest = MANIFEST) -> InnerTrainer:
    return InnerTrainer(manifest, CORPUS)


def weights(each: InnerTrainer) -> torch.Tensor:
    return each.layout.read(each.model)


def test_a_round_is_a_function_of_its_start_and_its_lane() -> None:
    first, second, other = trainer(), trainer(), trainer()
    first.train(1, [0])
    second.train(1, [0])
    other.train(1, [1])
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


def test_reports_every_step_and_the_round() -> None:
    steps: list[InnerStep] = []

    def keep_going(step: InnerStep) -> bool:
        steps.append(step)
        return True

    done = trainer().train(1, [0], keep_going)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert [step.tokens for step in steps] == [48, 96, 144, 192, 240]
    assert (done.steps, done.tokens) == (5, 240)
    assert done.loss == pytest.approx(sum(step.loss for step in steps) / 5)


def test_stops_after_the_step_at_which_it_is_told_to() -> None:
    slow, fast = trainer(), trainer()
    done = slow.train(1, [0], lambda step: step.step < 2)
    assert (done.steps, done.tokens) == (2, 96)
    fast.train(1, [0])
    assert not torch.equal(weights(slow), weights(fast))


def test_a_round_in_stints_is_the_round() -> None:
    whole, parted = trainer(), trainer()
    done = whole.train(1, [0])
    assert parted.train(1, [0], first=0, steps=2) + parted.train(1, [0], first=2, steps=3) == done
    assert torch.equal(weights(whole), weights(parted))


def test_a_gradient_is_taken_at_the_weights_which_stay() -> None:
    one = trainer()
    before, out = weights(one), torch.empty(one.layout.size)
    step = one.gradient(1, [0], 2, out)
    assert torch.equal(weights(one), before)
    tokens = lane_batch(TEXT, 0, 0, 1, 2, 3, 16)
    loss = one.model.loss(tokens)
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(one.model.parameters()))])
    assert torch.equal(out, expected)
    assert (step.step, step.loss, step.tokens) == (3, loss.item(), 48)


def test_several_lanes_are_joined_to_one_batch() -> None:
    one = trainer()
    seen: list[torch.Tensor] = []
    one.model.get_submodule("model").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert one.train(1, [0, 1]).tokens == 480
    assert torch.equal(seen[1], torch.cat([lane_batch(TEXT, 0, lane, 1, 1, 3, 16) for lane in (0, 1)])[:, :-1])


def test_moments_are_kept_from_round_to_round() -> None:
    kept, reset = trainer(), trainer()
    kept.train(1, [0])
    reset.train(1, [0])
    reset.optimizers[0].state.clear()
    for each in (kept, reset):
        each.train(2, [0])
    assert not torch.equal(weights(kept), weights(reset))


def test_a_swarm_of_one_that_only_averages_is_plain_adamw() -> None:
    """Outer lr 1, no momentum: the same but for the roundings of two subtractions in each round."""
    plain, lone = trainer(), trainer()
    theta, b = weights(lone), torch.zeros(lone.layout.size)
    for round in range(1, 4):
        plain.train(round, [0])
        lone.load(theta)
        lone.train(round, [0])
        delta = pseudo_gradient(theta, weights(lone))
        theta, b = outer_step(theta, b, delta, lr=1.0, momentum_factor=0.0)
        if round == 1:
            assert (theta - weights(plain)).abs().max() <= 2.0**-23 * theta.abs().max()
    assert torch.allclose(theta, weights(plain), rtol=0, atol=1e-4)
    assert (theta - weights(trainer())).abs().mean() > 1e-2  # and it has moved much further than that


def test_learns_the_sentence() -> None:
    one = trainer()
    losses = [one.train(round, [0]).loss for round in range(1, 31)]
    assert losses[-1] < 0.6 * losses[0]

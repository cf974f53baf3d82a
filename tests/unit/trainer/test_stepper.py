"""A step is the same whatever fits: in pieces, tried again, with activations recomputed."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from shoal.node.base.step_options import TrainerOptions
from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.methods.schedule import rate
from shoal.node.training.models.registry import build
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.node.training.trainer.optimizers import adamw, set_rate
from shoal.protocol.base.errors import LocalError
from tests.unit.test_inner import TEXT
from tests.unit.trainer.trainer_kit import BATCH, MODEL, SmallMemory, gradient, manifest, stored, trainer, weights

RELATIVE, ABSOLUTE = 1e-4, 1e-7  # roundings of fp32 sums in another order, on gradients of about 1e-2


def plainly(steps: int) -> Tensor:
    """The weights after so many steps of round 1, each made as one writes it down."""
    run = manifest()
    model = build(run)
    optimizer = adamw(list(model.parameters()), run.method, torch.device("cpu"))
    for step in range(steps):
        set_rate(optimizer, rate(run, step, None))
        loss = model.loss(lane_batch(TEXT, run.seed, 0, 1, step, BATCH, MODEL.context))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.method.clip)
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("micro_batch", [0, BATCH, 100])
def test_a_batch_that_is_not_cut_is_trained_on_as_it_always_was(micro_batch: int) -> None:
    one = trainer(micro_batch)
    one.train(1, [0])
    assert torch.equal(weights(one), plainly(4))
    assert one.micro_batch == BATCH


@pytest.mark.parametrize("micro_batch", [1, 3, 4])  # 3: the last one is smaller
def test_the_gradient_is_that_of_the_whole_batch_however_it_is_cut(micro_batch: int) -> None:
    whole, cut = trainer(clip=1e6), trainer(micro_batch, clip=1e6)
    losses = [each.train(1, [0], lambda _: False).loss for each in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert gradient(whole).abs().max() > 1e-3
    torch.testing.assert_close(gradient(cut), gradient(whole), rtol=RELATIVE, atol=ABSOLUTE)
    assert cut.micro_batch == micro_batch


def test_what_is_clipped_is_the_gradient_of_the_whole_batch() -> None:
    one = trainer(3, clip=1e-3)
    one.train(1, [0], lambda _: False)
    assert gradient(one).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_what_does_not_fit_is_halved_until_it_does_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.trainer")
    found, told = trainer(), trainer(2)
    memory = SmallMemory(found, rows=2)
    for each in (found, told):
        each.train(1, [0])
    assert memory.seen[:4] == [8, 4, 2, 2]
    assert found.micro_batch == 2
    assert caplog.messages == ["cpu trains on 8 sequences in micro-batches of 2"] * 2  # one line of each
    assert torch.equal(weights(found), weights(told))
    assert torch.equal(stored(found), stored(told))


def test_a_micro_batch_that_was_found_serves_larger_batches() -> None:
    one = trainer()
    memory = SmallMemory(one, rows=4)
    one.train(1, [0])
    memory.seen.clear()
    one.train(2, [0, 1])
    assert set(memory.seen) == {4}


class LateFailure:
    """Lets the n-th gradient of the first layer, counted over micro-batches, fail for want of memory."""

    def __init__(self, each: InnerTrainer, fails: int) -> None:
        self.count, self.fails = 0, fails
        weight = next(each.model.get_submodule("model.layers").parameters())
        weight.register_hook(self._count)

    def _count(self, _: Tensor) -> None:
        self.count += 1
        if self.count == self.fails:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:128] DefaultCPUAllocator: can't allocate memory")


def test_a_step_that_fails_half_done_is_repeated_and_nothing_counts_twice() -> None:
    late, told = trainer(4), trainer(4)
    failure = LateFailure(late, fails=6)  # in the backward pass of the last micro-batch of the third step
    late.train(1, [0])

    def halve(_: object) -> bool:
        if told.stepper.options.micro_batch == 4 and len(steps) == 1:
            told.stepper.options = TrainerOptions(2)
        steps.append(0)
        return True

    steps: list[int] = []
    told.train(1, [0], halve)
    assert failure.count == 6 + 2 * 4
    assert late.micro_batch == 2
    assert torch.equal(weights(late), weights(told))
    assert stored(late)[0] == 4


def test_activations_are_recomputed_where_one_sequence_does_not_fit() -> None:
    one, told = trainer(), trainer(1, recompute=True)
    memory = SmallMemory(one, rows=0)

    def recomputing(_: object, __: object) -> None:
        memory.rows = 1 if one.stepper.options.recompute else 0

    one.model.register_forward_pre_hook(recomputing)
    for each in (one, told):
        each.train(1, [0])
    assert memory.seen[:5] == [8, 4, 2, 1, 1]
    assert one.stepper.options == TrainerOptions(1, recompute=True)
    assert torch.equal(weights(one), weights(told))


def test_where_nothing_fits_the_weights_stay_and_somebody_is_told_what_to_do() -> None:
    one = trainer()
    SmallMemory(one, rows=0)
    before = weights(one)
    with pytest.raises(LocalError, match=r"one sequence does not fit in the memory of cpu, even .* another --device"):
        one.train(1, [0])
    assert torch.equal(weights(one), before)


def test_once_the_optimizer_has_begun_nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    one, calls = trainer(), []

    def fail() -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(one.optimizers[0], "step", fail)
    with pytest.raises(torch.OutOfMemoryError):
        one.train(1, [0])
    assert calls == [1]


def test_another_error_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer()

    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("the shapes do not match")

    monkeypatch.setattr(one.model, "loss", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        one.train(1, [0])

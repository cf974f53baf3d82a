"""A worker measures the validation loss of the committed weights when it is asked to, and trains as it would have."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from shoal.node.ipc.messages import MOST_SEQUENCES, Contribution, HandIn, Hurry, Landing, Validated
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.data.held_out import held_out_sequences
from shoal.node.training.methods.late import DelayedDiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.models.layout import Layout
from shoal.node.training.trainer.evaluate import SampleLoss
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.protocol.base.ids import NO_DIGEST
from shoal.protocol.base.wire import Message
from tests.unit.test_worker import STEPS, Bench, train
from tests.unit.trainer.trainer_kit import manifest, stored, trainer, weights

THERE = Landing(7, True, True, 3, ())


def validated(bench: Bench) -> list[Validated]:
    return [each for each in bench.sent if isinstance(each, Validated)]


def test_it_is_measured_before_the_first_step_with_the_weights_that_were_loaded() -> None:
    bench = Bench()
    bench.order(train(validates=8))
    first = bench.sent[0]
    assert isinstance(first, Validated)
    assert (first.order, first.round, first.loss, first.sequences) == (1, 7, 1.0, 8)
    assert first.seconds >= 0
    assert bench.steps() == [1, 2, 3, 4]
    assert bench.sent[-1] == Contribution(order=1, round=7, steps=4, tokens=40, loss=0.5)


def test_it_is_measured_only_when_that_is_asked_for() -> None:
    bench = Bench()
    bench.order(train())
    assert not validated(bench)
    assert not bench.trainer.asked


@pytest.mark.parametrize("word", [Hurry(1), HandIn(1), train(2, 8)])
def test_who_is_waited_for_does_not_begin_it_and_breaks_it_off(word: Message) -> None:
    before, during, order = Bench(), Bench(), train(validates=8)
    before.orders.take(order)
    before.orders.take(word)
    before.loop.carry_out(order)
    assert not before.trainer.asked
    during.trainer.while_measuring = lambda: during.orders.take(word)
    during.order(train(validates=8))
    assert [(each.loss, each.sequences) for each in validated(during)] == [(None, 0)]
    assert during.trainer.asked == [8]


def test_who_is_hurried_trains_all_its_steps() -> None:
    bench = Bench()
    bench.trainer.while_measuring = lambda: bench.orders.take(Hurry(1))
    bench.order(train(validates=8))
    assert bench.steps() == [1, 2, 3, 4]
    bench.order(train(2, 8, is_fresh=True, validates=8))
    assert validated(bench)[-1].sequences == 8, "the words were about the order before"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_not_told(loss: float) -> None:
    bench = Bench()
    bench.trainer.held_out_loss = lambda: loss
    bench.order(train(validates=8))
    assert [each.loss for each in validated(bench)] == [None]


def test_an_error_costs_the_figure_and_not_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()

    def fail() -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    bench.trainer.held_out_loss = fail
    bench.order(train(validates=8))
    bench.order(train(2, 8, validates=8))
    assert [(each.loss, each.sequences) for each in validated(bench)] == [(None, 0)] * 2
    assert bench.steps() == [1, 2, 3, 4] * 2
    assert capsys.readouterr().err.count("cannot be measured: OutOfMemoryError: CUDA out of memory") == 1


def delayed() -> Method:
    return DelayedDiLoCo(STEPS, 1.0, 0.0)


def mixing() -> Method:
    return Streaming(Layout({"layers.0.w": (2,), "norm": (1,)}), 1, STEPS, 0, 0.5, 1.0, 0.0)


@pytest.mark.parametrize("method", [delayed, mixing])
def test_a_worker_with_weights_of_its_own_measures_the_agreed_ones_and_goes_on_with_its_own(
    method: Callable[[], Method],
) -> None:
    plain, measuring = Bench(method()), Bench(method())
    for bench, sequences in ((plain, 0), (measuring, 8)):
        bench.order(train(1, 7, steps=STEPS, is_fresh=True))
        bench.order(train(2, 8, steps=1, hand_in=False))
        bench.parameters.fill(5.0)
        bench.order(train(3, 8, first=1, steps=3, version=7, landings=(THERE,), validates=sequences))
        bench.order(train(4, 9, steps=1, hand_in=False, version=7, validates=sequences))
    assert [each.loss for each in validated(measuring)] == [5.0, 5.0]
    assert torch.equal(measuring.trainer.weights, plain.trainer.weights)
    assert measuring.contribution.tolist() == plain.contribution.tolist()
    assert measuring.trainer.steps == plain.trainer.steps


def test_a_state_that_this_order_does_not_bring_is_not_measured() -> None:
    bench = Bench(delayed())
    bench.order(train(1, 7, steps=STEPS, is_fresh=True))
    bench.parameters.fill(5.0)
    bench.order(train(2, 8, steps=1, hand_in=False, version=7, validates=8))
    assert [(each.loss, each.sequences) for each in validated(bench)] == [(None, 0)]
    assert bench.trainer.asked == []


# -- with a model -------------------------------------------------------------------------------------------


def test_training_is_bit_for_bit_as_without() -> None:
    plain, measuring = trainer(), trainer()
    torch.manual_seed(3)
    for round in (1, 2, 3):
        plain.train(round, [0])
    random_state = torch.get_rng_state()
    torch.manual_seed(3)
    losses = []
    for round in (1, 2, 3):
        made = measuring.validate(8, lambda: True)
        assert made.sequences == 8
        assert made.loss is not None
        losses.append(made.loss)
        measuring.train(round, [0], lambda step: measuring.validate(3, lambda: step.step % 2 == 0) is not None)
    assert losses[2] < losses[0]
    assert torch.equal(weights(measuring), weights(plain))
    assert torch.equal(stored(measuring), stored(plain))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training for module in measuring.model.modules())


def test_a_figure_is_a_function_of_the_weights_and_the_run() -> None:
    one, other = trainer(), trainer()
    one.train(1, [0])
    other.train(1, [1])
    before = one.validate(8, lambda: True)
    other.load(one.read())
    assert other.validate(8, lambda: True) == before
    assert other.validate(4, lambda: True) != before


def test_it_can_be_broken_off_between_two_batches() -> None:
    one = trainer(micro_batch=2)
    one.train(1, [0])
    answers = iter([True, True, False])
    assert one.validate(8, lambda: next(answers)) == SampleLoss(None, 4)


# -- what is measured ---------------------------------------------------------------------------------------


def corpus(held: torch.Tensor) -> Corpus:
    return Corpus(torch.zeros(100, dtype=torch.uint8), held, NO_DIGEST, 1, 0)


def test_sequences_are_adjacent_windows_in_an_order_of_the_run() -> None:
    held = torch.randint(0, 256, (5000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    rows = held_out_sequences(corpus(held), 16, seed=1)
    assert rows.shape == (MOST_SEQUENCES, 17)
    starts = {tuple(row.tolist()) for row in held.unfold(0, 17, 16)}
    assert {tuple(row.tolist()) for row in rows} <= starts
    assert len({tuple(row.tolist()) for row in rows}) == MOST_SEQUENCES
    assert torch.equal(held_out_sequences(corpus(held), 16, seed=1), rows)
    assert not torch.equal(held_out_sequences(corpus(held), 16, seed=2), rows)


@pytest.mark.parametrize(("size", "shape"), [(0, (0, 17)), (1, (0, 17)), (2, (1, 2)), (17, (1, 17)), (40, (2, 17))])
def test_a_small_text_has_few_sequences(size: int, shape: tuple[int, int]) -> None:
    assert held_out_sequences(corpus(torch.zeros(size, dtype=torch.uint8)), 16, seed=0).shape == shape


def test_samples_that_are_not_text_are_taken_as_they_are() -> None:
    held = torch.rand(300, 5, generator=torch.Generator().manual_seed(0))
    rows = held_out_sequences(corpus(held), 16, seed=0)
    assert rows.shape == (MOST_SEQUENCES, 5)
    assert all(any(torch.equal(row, each) for each in held) for row in rows[:3])


def test_nothing_is_measured_where_nothing_is_held_out() -> None:
    none = InnerTrainer(manifest(), corpus(torch.zeros(0, dtype=torch.uint8)))
    assert none.validate(8, lambda: True) == SampleLoss(None, 0)

"""The training loop of the built-in worker with a trainer of a few lines: orders, hand-ins, failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.node.ipc.messages import Contribution, Failed, HandIn, Progress, Train
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.trainer.evaluate import SampleLoss
from shoal.node.training.trainer.inner import InnerRound, InnerStep
from shoal.node.worker.stints import Orders
from shoal.node.worker.weights import WorkerWeights
from shoal.node.worker.worker import TrainingLoop
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.wire import Message

STEPS = 4


class CountingTrainer:
    """Each of its inner steps subtracts the lane from every weight; `before_step` lets a test interfere."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.micro_batch = 5
        self.weights = torch.zeros(3)
        self.before_step: Callable[[int], None] = lambda step: None
        self.loss = 0.5
        self.steps = 0
        self.while_measuring: Callable[[], None] = lambda: None
        self.held_out_loss: Callable[[], float] = lambda: float(self.weights[0])
        self.asked: list[int] = []  # on how many sequences it was to measure

    def flops_utilization(self, tokens_per_second: float) -> float | None:
        return 0.25

    def load(self, theta: Tensor) -> None:
        self.weights = theta.clone()

    def read(self, out: Tensor | None = None) -> Tensor:
        return self.weights.clone() if out is None else out.copy_(self.weights)

    def train(
        self, round: int, lanes: Sequence[int], keep_going: Callable[[InnerStep], bool], first: int, steps: int
    ) -> InnerRound:
        step = 0
        for step in range(1, steps + 1):
            self.before_step(step)
            self.weights -= sum(lanes)
            self.steps += 1
            if not keep_going(InnerStep(first + step, self.loss, 10 * step)):
                break
        return InnerRound(step, 10 * step, self.loss)

    def gradient(self, round: int, lanes: Sequence[int], first: int, out: Tensor) -> InnerStep:
        out.fill_(float(sum(lanes)))
        return InnerStep(first + 1, self.loss, 10)

    def validate(self, sequences: int, go_on: Callable[[], bool]) -> SampleLoss:
        self.asked.append(sequences)
        self.while_measuring()
        loss = self.held_out_loss()
        return SampleLoss(loss, sequences) if go_on() else SampleLoss(None, 0)

    def store(self, out: Tensor) -> None:
        out.fill_(self.steps)


def train(order: int = 1, round: int = 7, lane: int = 2, **fields: Any) -> Train:
    return Train(order, round, lane, **{"version": round - 1, "steps": STEPS, **fields})


class Bench:
    """A loop, and the daemon's side of it."""

    def __init__(self, method: Method | None = None) -> None:
        self.trainer = CountingTrainer()
        self.orders = Orders()
        self.parameters = np.ones(3, dtype=np.float32)
        self.contribution = np.full(3, math.nan, dtype=np.float32)
        self.sent: list[Message] = []
        self.moments = np.zeros(7, dtype=np.float32)
        self.method: Method = method or DiLoCo(STEPS, 1.0, 0.0)
        self.loop = self.new_loop(self.sent.append)

    def new_loop(self, send: Callable[[Message], None]) -> TrainingLoop:
        weights = WorkerWeights(self.method, self.trainer, self.parameters, self.moments, None)
        wants = self.method.wants_gradients
        return TrainingLoop(
            self.trainer, weights, self.orders, self.contribution, self.moments, send, wants_gradients=wants
        )

    def order(self, order: Train) -> None:
        self.orders.take(order)
        self.loop.carry_out(order)

    def steps(self) -> list[int]:
        return [each.step for each in self.sent if isinstance(each, Progress)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_progress_says_how_the_device_is_used(bench: Bench) -> None:
    bench.order(train(1, 1))
    first = bench.sent[0]
    assert isinstance(first, Progress)
    assert (first.micro_batch, first.model_flops_utilization) == (5, 0.25)


def test_a_whole_round(bench: Bench) -> None:
    bench.order(train())
    assert bench.steps() == [1, 2, 3, 4]
    assert bench.sent[-1] == Contribution(order=1, round=7, steps=4, tokens=40, loss=0.5)
    assert bench.contribution.tolist() == [8.0, 8.0, 8.0]
    assert bench.moments.tolist() == [4.0] * 7


def test_the_contribution_is_relative_to_what_was_loaded_even_if_the_daemon_has_loaded_more(bench: Bench) -> None:
    bench.trainer.before_step = lambda step: bench.parameters.fill(100 * step)
    bench.order(train())
    assert bench.contribution.tolist() == [8.0, 8.0, 8.0]


def test_a_hand_in_ends_the_round_after_the_step(bench: Bench) -> None:
    bench.trainer.before_step = lambda step: bench.orders.take(HandIn(1)) if step == 2 else None
    bench.order(train())
    assert bench.steps() == [1, 2]
    assert bench.sent[-1] == Contribution(1, 7, steps=2, tokens=20, loss=0.5)
    assert bench.contribution.tolist() == [4.0, 4.0, 4.0]


def test_a_hand_in_before_the_first_step_contributes_nothing(bench: Bench) -> None:
    bench.orders.take(HandIn(1))
    bench.order(train())
    assert bench.sent == [Contribution(1, 7, steps=0, tokens=0, loss=None)]
    assert bench.contribution.tolist() == [0.0, 0.0, 0.0]


def test_a_hand_in_of_an_older_order_means_nothing(bench: Bench) -> None:
    bench.orders.take(HandIn(1))
    bench.order(train(2, 7, 2))
    assert bench.steps() == [1, 2, 3, 4]


def test_a_new_order_ends_the_round_without_a_contribution(bench: Bench) -> None:
    newer = train(2, 8, 2)
    bench.trainer.before_step = lambda step: bench.orders.take(newer) if step == 3 else None
    bench.order(train())
    assert bench.steps() == [1, 2, 3]
    assert not bench.moments.any()  # those of the last hand-in stay, of which the round before was made
    assert not any(isinstance(each, Contribution) for each in bench.sent)
    assert bench.orders.after(1) is newer


def run_until_the_daemon_is_gone(bench: Bench) -> None:
    """Run the loop with an order; sending a contribution finds the daemon gone, so that it ends."""

    def send(message: Message) -> None:
        bench.sent.append(message)
        if isinstance(message, Contribution):
            raise TransportError("gone")

    bench.orders.take(train())
    bench.new_loop(send).run()


def test_the_loop_ends_quietly_when_the_daemon_is_gone(bench: Bench) -> None:
    run_until_the_daemon_is_gone(bench)
    assert isinstance(bench.sent[-1], Contribution)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails_the_order(bench: Bench, loss: float) -> None:
    bench.trainer.loss = loss
    run_until_the_daemon_is_gone(bench)
    assert bench.sent == [Failed(1, 7, f"ArithmeticError: the loss of inner step 1 is {loss}")]


def test_a_pseudo_gradient_with_nan_fails_the_order(bench: Bench) -> None:
    def diverge(step: int) -> None:
        bench.trainer.weights.fill_(math.nan)

    bench.trainer.before_step = diverge
    run_until_the_daemon_is_gone(bench)
    assert bench.sent[-1] == Failed(1, 7, "ArithmeticError: the contribution has NaN or Inf")


def test_any_error_fails_the_order_with_a_reason_of_bounded_length(bench: Bench) -> None:
    def fail(step: int) -> None:
        raise KeyError("x" * 5000)

    bench.trainer.before_step = fail
    run_until_the_daemon_is_gone(bench)
    (failed,) = bench.sent
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("KeyError: 'xxx")
    assert len(failed.reason) == 500

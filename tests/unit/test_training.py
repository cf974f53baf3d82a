"""What becomes of what a worker hands in: submitted once, checked, and never from a state that we have left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from shoal.node import training
from shoal.node.layout import Layout
from shoal.node.shm import FloatArray
from shoal.node.state import CommittedState
from shoal.node.state_shape import StateShape
from shoal.node.training import Training
from shoal.node.worker_messages import Contribution, Progress
from shoal.node.worker_process import WorkerSettings

SIZE = 8


class FakeWorker:
    """Keeps what it is told; the tests answer for it."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        on_progress: Callable[[Progress], None],
        on_contribution: Callable[[Contribution], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.on_progress, self.on_contribution, self.on_lost = on_progress, on_contribution, on_lost
        self.contribution: FloatArray = np.ones(SIZE, dtype=np.float32)
        self.orders: list[tuple[int, int]] = []
        self.handed_in: list[int] = []
        self.forgotten = 0
        self.unloaded = 0

    def forget(self) -> None:
        self.forgotten += 1

    async def train(self, round: int, lane: int, parameters: FloatArray) -> None:
        self.orders.append((round, lane))

    async def unload(self) -> None:
        self.unloaded += 1

    def hand_in(self, round: int) -> None:
        self.handed_in.append(round)


@dataclass
class Bench:
    """A Training, its worker, and what it submitted."""

    training: Training
    worker: FakeWorker
    submitted: list[tuple[int, FloatArray | None]]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def settle(self) -> None:
        """Until nothing that was started is going on."""
        while self.tasks:
            await self.tasks.pop(0)


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(training, "Worker", FakeWorker)
    state = CommittedState(StateShape(Layout({"weight": (SIZE,)}), 4096), torch.zeros(SIZE))
    settings = WorkerSettings(tmp_path, tmp_path / "worker.log", b"", SIZE, 1)
    submitted: list[tuple[int, FloatArray | None]] = []
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.create_task(work))

    made = Training(settings, state, lambda weight, vector: submitted.append((weight, vector)), spawn)
    yield Bench(made, made._worker, submitted, tasks)  # type: ignore[arg-type]


def progress(round: int, step: int = 1) -> Progress:
    return Progress(1, round, step, 2.5, 100 * step, 1000.0, 0)


def contribution(round: int, tokens: int = 100) -> Contribution:
    return Contribution(1, round, 1, tokens, 1.5 if tokens else None)


@pytest.mark.asyncio
async def test_a_round_is_begun_and_submitted(bench: Bench) -> None:
    bench.training.begin(3, lane=2)
    await bench.settle()
    assert (bench.worker.orders, bench.worker.forgotten) == ([(3, 2)], 1)
    bench.worker.on_progress(progress(3))
    assert bench.training.loss == 2.5
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.submitted == [(100, bench.worker.contribution)]
    assert bench.worker.unloaded == 1
    bench.training.begin(4, lane=0)
    assert bench.training.loss == 1.5


@pytest.mark.asyncio
async def test_a_worker_is_asked_early_only_after_its_first_step_and_once(bench: Bench) -> None:
    bench.training.begin(3, lane=2)
    bench.training.call(3)
    assert bench.worker.handed_in == []
    bench.worker.on_progress(progress(3))
    bench.worker.on_progress(progress(3, step=2))
    assert bench.worker.handed_in == [3]
    bench.training.begin(4, lane=2)
    bench.worker.on_progress(progress(4))
    bench.training.call(3)  # late words about a round that is over
    assert bench.worker.handed_in == [3]


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_what_diverged_weighs_nothing(bench: Bench, value: float) -> None:
    bench.training.begin(3, lane=2)
    bench.worker.contribution[SIZE - 1] = value
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.submitted == [(0, None)]


@pytest.mark.asyncio
async def test_nothing_trained_is_a_weight_of_zero(bench: Bench) -> None:
    bench.training.begin(3, lane=2)
    bench.worker.on_contribution(contribution(3, tokens=0))
    await bench.settle()
    assert bench.submitted == [(0, None)]


@pytest.mark.asyncio
async def test_what_was_trained_from_a_state_that_we_left_is_not_submitted(bench: Bench) -> None:
    bench.training.begin(3, lane=2)
    await bench.settle()
    bench.worker.on_contribution(contribution(3))
    bench.training.begin(3, lane=2)  # the same round again, from another state, while the vector is looked at
    await bench.settle()
    assert bench.submitted == []


@pytest.mark.asyncio
async def test_the_loss_of_a_worker_is_trouble_until_the_next_makes_a_step(bench: Bench) -> None:
    bench.training.begin(3, lane=2)
    bench.worker.on_lost("the worker was ended by SIGKILL")
    assert "SIGKILL" in bench.training.trouble
    bench.worker.on_progress(progress(3))
    assert bench.training.trouble == ""
    await bench.settle()

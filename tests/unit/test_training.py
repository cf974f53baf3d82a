"""What a worker hands in is submitted once, checked, and never from a state that the run has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.node.ipc.messages import Contribution, Landing, Progress, Train, Validated
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import Sizes
from shoal.node.ipc.worker_end import WorkerEnd
from shoal.node.supervisor import training
from shoal.node.supervisor.process import BUILT_IN, WorkerSettings
from shoal.node.supervisor.training import Training
from shoal.node.supervisor.validation import LEAST
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.late import EagerDiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.models.layout import Layout
from shoal.node.training.state.committed import Lease
from shoal.node.training.state.outer import Outcome
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import LocalError
from tests.unit.state_kit import state_of

SIZE = 8
MEMBERS = 5  # who take part while nothing is known of a round


class FakeWorker:
    """Keeps what it is told; the tests answer for it."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        on_progress: Callable[[Progress], None],
        on_contribution: Callable[[Contribution], None],
        on_trained: Callable[[], None],
        on_lost: Callable[[WorkerEnd], None],
        on_sign: Callable[[], None],
        on_validated: Callable[[int, Validated], None],
    ) -> None:
        self.on_progress, self.on_contribution, self.on_lost = on_progress, on_contribution, on_lost
        self.on_trained, self.on_sign = on_trained, on_sign
        self.on_validated = on_validated
        self.contribution: FloatArray = np.ones(SIZE, dtype=np.float32)
        self.orders: list[Train] = []
        self.handed_in: list[int] = []
        self.hurried: list[int] = []
        self.forgotten = 0
        self.unloaded = 0
        self.retired: list[bool] = []  # whether its contribution was kept
        self.woken = 0
        self.is_over = False
        self.pid: int | None = 1
        self.usual_step = 0.0

    def forget(self) -> None:
        self.forgotten += 1

    async def train(self, order: Train, agreed: Sequence[FloatArray], answer: FloatArray | None) -> None:
        self.orders.append(order)

    async def unload(self) -> None:
        self.unloaded += 1

    async def retire(self, keeps_contribution: bool = False) -> None:
        await asyncio.sleep(0)
        self.retired.append(keeps_contribution)

    def wake(self) -> None:
        assert self.retired, "it would lose its vectors afterwards"
        self.woken += 1

    def hand_in(self, round: int) -> None:
        self.handed_in.append(round)

    def hurry(self, round: int) -> None:
        self.hurried.append(round)


@dataclass
class Bench:
    """A Training, its worker, and what it submitted."""

    training: Training
    worker: FakeWorker
    submitted: list[tuple[int, int, FloatArray | None]]
    absent: list[int]  # rounds for which nobody trains
    validated: list[tuple[int, float, int]]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def settle(self) -> None:
        """Wait until all started tasks are done."""
        while self.tasks:
            await self.tasks.pop(0)
        for _ in range(5):  # looks at a worker that is waited for
            await asyncio.sleep(0)


class Outer:
    """The part of an OuterState that a training uses."""

    def __init__(self, method: Method) -> None:
        shape = StateShape(Layout({"weight": (SIZE,)}), 4096)
        self.method, self.timetable = method, Timetable(method)
        self.answers: dict[int, FloatArray] = {}
        self.committed = state_of(shape, torch.zeros(SIZE), round=2)

    def lease(self, round: int | None) -> Lease:
        return self.committed.lease()


class Committing(Outer):
    """Holds the state of whatever round is asked for."""

    def lease(self, round: int | None) -> Lease:
        if round is not None:
            shape = StateShape(Layout({"weight": (SIZE,)}), 4096)
            self.committed = state_of(shape, torch.zeros(SIZE), round=round)
        return self.committed.lease()


def bench_of(
    method: Method,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: int | None = None,
    is_script: bool = False,
    outer: type[Outer] = Outer,
    late_from: int | None = None,
) -> Bench:
    monkeypatch.setattr(training, "WorkerSupervisor", FakeWorker)
    monkeypatch.setattr(training, "LOOK", 0.0)
    program = () if is_script else BUILT_IN
    settings = WorkerSettings(folder, folder / "worker.log", b"", Sizes(SIZE), 1, program=program)
    submitted: list[tuple[int, int, FloatArray | None]] = []
    tasks: list[asyncio.Task[None]] = []
    waiting: list[asyncio.Task[None]] = []  # for a worker, for which nothing else waits

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        (waiting if work.cr_code is Training._watch_attendance.__code__ else tasks).append(task)  # type: ignore[attr-defined]
        return task

    def submit(round: int, weight: int, vector: FloatArray | None) -> None:
        submitted.append((round, weight, vector))

    absent: list[int] = []
    figures: list[tuple[int, float, int]] = []

    def validated(round: int, loss: float, sequences: int) -> None:
        figures.append((round, loss, sequences))

    state: Any = outer(method)
    made = Training(settings, state, submit, spawn, lambda: MEMBERS, None, last, absent.append, validated, late_from)
    return Bench(made, made._worker, submitted, absent, figures, tasks)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch)


def progress(round: int, step: int = 1) -> Progress:
    return Progress(1, round, step, 2.5, 100 * step, 1000.0, 0, 1.0)


def contribution(round: int, tokens: int = 100) -> Contribution:
    return Contribution(1, round, 1, tokens, 1.5 if tokens else None)


@pytest.mark.asyncio
async def test_a_round_is_begun_and_submitted(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    await bench.settle()
    assert bench.worker.orders == [Train(0, 3, 2, version=2, steps=5, is_fresh=True)]
    assert bench.worker.forgotten
    bench.worker.on_progress(progress(3))
    assert bench.training.loss == 2.5
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.submitted == [(3, 100, bench.worker.contribution)]
    assert bench.worker.unloaded == 1
    bench.training.note(3, Outcome(4, ()))
    bench.training.committed(3, lane=0)
    assert bench.training.loss == 1.5
    await bench.settle()
    assert bench.worker.orders[-1].landings == (Landing(3, True, False, 4, ()),)  # no newer state is there in this test


@pytest.mark.asyncio
async def test_who_comes_into_a_run_that_goes_on_holds_it_up_with_no_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = DiLoCo(5, 0.7, 0.9)
    late = bench_of(method, tmp_path, monkeypatch, late_from=1)
    late.training.begin(2, lane=2)
    late.training.committed(3, lane=2)
    assert late.absent == [3, 4], "until its first step"
    late.worker.on_sign()
    late.training.begin(4, lane=2)
    assert late.absent == [3, 4]
    for late_from, base in ((1, 0), (3, 2), (None, 2)):  # all have just begun, or were started again, or all wait
        patient = bench_of(method, tmp_path, monkeypatch, late_from=late_from)
        patient.training.begin(base, lane=2)
        assert patient.absent == []


@pytest.mark.asyncio
async def test_a_worker_is_asked_early_only_after_its_first_step_and_once(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.training.call(3)
    assert bench.worker.handed_in == []
    bench.worker.on_progress(progress(3))
    bench.worker.on_progress(progress(3, step=2))
    assert bench.worker.handed_in == [3]
    bench.training.committed(3, lane=2)
    bench.worker.on_progress(progress(4))
    bench.training.call(3)  # late words about a round that is over
    assert bench.worker.handed_in == [3]


@pytest.mark.asyncio
@pytest.mark.parametrize(("is_script", "sequences"), [(False, LEAST), (True, 1)])
async def test_a_state_is_measured_after_the_workers_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_script: bool, sequences: int
) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, is_script=is_script, outer=Committing)
    bench.training.begin(2, lane=2)
    await bench.settle()
    bench.worker.on_contribution(contribution(3))
    bench.training.committed(3, lane=2)
    await bench.settle()
    assert [order.validates for order in bench.worker.orders] == [0, sequences]
    bench.worker.on_validated(3, Validated(2, 4, 2.25, sequences, 0.5))
    bench.worker.on_validated(3, Validated(2, 4, None, 0, 0.5))
    assert bench.validated == [(3, 2.25, sequences)]


@pytest.mark.asyncio
async def test_once_the_others_wait_nothing_is_measured_before_the_steps(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.training.call(3)
    assert bench.worker.hurried == [3]
    await bench.settle()


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_what_diverged_weighs_nothing(bench: Bench, value: float) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.contribution[SIZE - 1] = value
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.submitted == [(3, 0, None)]


@pytest.mark.asyncio
async def test_nothing_trained_is_a_weight_of_zero(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.on_contribution(contribution(3, tokens=0))
    await bench.settle()
    assert bench.submitted == [(3, 0, None)]


@pytest.mark.asyncio
async def test_what_was_trained_from_a_state_that_we_left_is_not_submitted(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    await bench.settle()
    bench.worker.on_contribution(contribution(3))
    bench.training.begin(2, lane=2)  # the same round again, from another state, while the vector is looked at
    await bench.settle()
    assert bench.submitted == []


@pytest.mark.asyncio
async def test_steps_from_a_state_that_we_left_are_no_progress(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.on_progress(progress(3, step=4))
    bench.training.begin(2, lane=2)  # the same round again
    assert bench.training.progress is None
    bench.training.call(3)
    assert bench.worker.handed_in == [], "there is no step yet that could be handed in"
    bench.worker.on_progress(progress(3))
    assert bench.worker.handed_in == [3]
    await bench.settle()


@pytest.mark.asyncio
async def test_the_loss_of_a_worker_is_trouble_until_the_next_makes_a_step(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.on_lost(WorkerEnd("the worker was ended by SIGKILL"))
    assert "SIGKILL" in bench.training.trouble
    assert bench.training.lost == bench.training.trouble
    bench.worker.on_progress(progress(3))
    assert bench.training.trouble == bench.training.lost == ""
    await bench.settle()


@pytest.mark.asyncio
async def test_the_node_answers_for_a_script_that_has_gone_until_the_next_makes_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, is_script=True)
    bench.training.begin(2, lane=2)
    assert bench.absent == [], "it may be about to come"
    bench.worker.on_sign()
    bench.worker.on_progress(progress(3))
    bench.worker.on_lost(WorkerEnd("the script has gone"))
    assert bench.absent == [3], "at once"
    bench.training.committed(3, lane=0)
    assert bench.absent == [3, 4]
    bench.worker.on_sign()
    bench.training.committed(4, lane=0)
    assert bench.absent == [3, 4]
    await bench.settle()


@pytest.mark.asyncio
async def test_a_script_that_was_never_there_is_answered_for_when_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, is_script=True)
    bench.worker.pid = None
    bench.training.begin(2, lane=2)
    bench.training.call(2)
    await bench.settle()
    assert bench.absent == [], "that is another round"
    bench.training.call(3)
    await bench.settle()
    assert bench.absent == [3]


@pytest.mark.asyncio
async def test_a_worker_that_is_started_again_is_waited_for_until_the_others_call(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.on_lost(WorkerEnd("the worker was ended by SIGKILL"))
    bench.training.committed(3, lane=0)
    assert bench.absent == []
    bench.worker.pid = None  # in its back-off
    bench.training.call(4)
    await bench.settle()
    assert bench.absent == [4]
    bench.training.committed(4, lane=0)
    assert bench.absent == [4, 5], "the others wait once, not in each round"
    bench.worker.on_lost(WorkerEnd("the worker has failed: cuda is not here", is_final=True))
    assert bench.absent == [4, 5, 5]
    await bench.settle()


@pytest.mark.asyncio
async def test_of_a_worker_that_is_not_there_no_time_is_said(bench: Bench) -> None:
    bench.worker.pid = None  # about to be started for the first time
    bench.training.begin(2, lane=2)
    bench.training.call(3)
    await bench.settle()
    assert (bench.absent, bench.training.trouble) == ([3], "the worker is not running yet")


@pytest.mark.asyncio
async def test_a_worker_that_works_is_waited_for(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.training.call(3)
    await asyncio.sleep(0)
    bench.worker.on_sign()
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert (bench.absent, len(bench.submitted)) == ([], 1)


@pytest.mark.asyncio
async def test_after_the_last_round_nobody_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, last=3)
    bench.training.begin(2, lane=2)
    bench.worker.on_progress(progress(3))
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.worker.retired == [], "others may not have it yet"
    bench.worker.on_lost(WorkerEnd("the worker was ended by SIGKILL"))
    bench.training.committed(3, lane=0)
    await bench.settle()
    assert bench.worker.retired == [False]
    assert (bench.training.progress, bench.training.utilisation, bench.training.trouble) == (None, None, "")
    assert bench.training.loss == 1.5


@pytest.mark.asyncio
async def test_who_is_back_after_the_last_round_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, last=2)
    bench.training.begin(2, lane=2)
    await bench.settle()
    assert (bench.worker.orders, bench.worker.retired) == ([], [False])


@pytest.mark.asyncio
async def test_who_has_ended_a_branch_trains_on_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(DiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, last=3)
    bench.training.begin(3, lane=2)
    bench.training.begin(0, lane=2)
    bench.training.begin(1, lane=2)  # before the worker has retired
    await bench.settle()
    assert (bench.worker.retired, bench.worker.woken) == ([False], 1)
    assert [order.round for order in bench.worker.orders] == [2]
    bench.worker.on_contribution(contribution(2))
    bench.training.committed(2, lane=2)
    await bench.settle()
    assert [order.round for order in bench.worker.orders] == [2, 3]
    assert bench.worker.woken == 1


@pytest.mark.asyncio
async def test_a_worker_that_failed_for_good_is_a_failure_that_stays(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    bench.worker.on_lost(WorkerEnd("the worker has failed: cuda is not here", is_final=True))
    assert bench.training.failure == "the worker has failed: cuda is not here"
    assert bench.training.trouble.startswith(f"{bench.training.failure}. No other is started: mend that")
    bench.training.committed(3, lane=2)
    assert bench.training.failure
    await bench.settle()


@pytest.mark.asyncio
async def test_of_a_round_before_its_first_a_worker_is_told_how_many_take_part_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eager one takes its share of a mean by that number, and there is no answer yet that would say another."""
    bench = bench_of(EagerDiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch)
    bench.training.begin(2, lane=2)
    bench.worker.on_trained()
    bench.worker.on_contribution(contribution(3))
    await bench.settle()
    assert bench.worker.orders[-1].landings == (Landing(2, False, False, MEMBERS, ()),)


@pytest.mark.asyncio
async def test_what_became_of_a_round_is_forgotten_once_the_worker_knows_it(bench: Bench) -> None:
    """Rounds of single steps are many: nothing may grow with their number."""
    bench.training.begin(2, lane=2)
    for round in range(3, 203):
        bench.worker.on_contribution(contribution(round))
        bench.training.note(round, Outcome(4, ()))
        bench.training.committed(round, lane=0)
        await bench.settle()
        assert bench.worker.orders[-1].landings == (Landing(round, True, False, 4, ()),)
    assert len(bench.training._outcomes) < 5


@pytest.mark.asyncio
async def test_nor_does_it_grow_while_the_worker_is_away(bench: Bench) -> None:
    bench.training.begin(2, lane=2)
    for round in range(3, 1003):
        bench.training.note(round, Outcome(4, ()))
        bench.training.committed(round, lane=0)
    await bench.settle()
    landings = bench.worker.orders[-1].landings
    assert [each.round for each in landings] == list(range(1003 - len(landings), 1003))
    assert all(each.is_there for each in landings)
    assert len(bench.training._outcomes) <= 2 * len(landings)


@pytest.mark.asyncio
async def test_a_worker_with_weights_of_its_own_shows_them_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(EagerDiLoCo(5, 0.7, 0.9), tmp_path, monkeypatch, last=3)
    bench.training.begin(2, lane=2)
    bench.worker.on_trained()
    bench.worker.on_contribution(contribution(3))
    asked = asyncio.create_task(bench.training.weights())
    await bench.settle()
    assert not any(order.shows for order in bench.worker.orders), "round 3 is not over"
    bench.training.committed(3, lane=0)
    await bench.settle()
    assert (bench.worker.orders[-1].shows, bench.worker.orders[-1].steps) == (True, 0)
    assert not asked.done()
    bench.worker.contribution = np.arange(SIZE, dtype=np.float32)
    bench.worker.on_trained()
    await bench.settle()
    assert (await asyncio.wait_for(asked, 10) == np.arange(SIZE)).all()
    bench.worker.is_over = True
    with pytest.raises(LocalError, match="has ended"):
        await bench.training.weights()


@pytest.mark.asyncio
async def test_a_worker_that_shows_nothing_is_not_waited_for_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SHOWN_WITHIN", 0.01)
    with pytest.raises(LocalError, match="has not shown its weights"):
        await bench.training.weights()

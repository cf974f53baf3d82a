"""A worker's orders, what it does for them, and the share of its time in which it trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.node.ipc.messages import Contribution, HandIn, Landing, Progress, Train, Trained
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import MARKS, SharedVectors, Sizes, mark_of
from shoal.node.supervisor.process import WorkerSettings
from shoal.node.supervisor.supervisor import WorkerSupervisor
from shoal.node.training.methods.ddp import DDP
from shoal.node.training.methods.late import DelayedDiLoCo
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.models.layout import Layout
from shoal.node.worker.stints import STINTS, Utilisation
from tests.unit.test_worker import Bench, train

SIZE = 6


def ignored(*_: object) -> None:
    """Nothing is said here: no process is started."""


class Watched(WorkerSupervisor):
    """Notes what `loaded` holds while vectors are written."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings, on_progress=ignored, on_contribution=ignored, on_trained=ignored, on_lost=ignored)
        self.meanwhile: list[float] = []

    def _load(self, agreed: Sequence[FloatArray], answer: FloatArray | None) -> None:
        self.meanwhile.append(float(self.vectors.loaded.array[0]))
        super()._load(agreed, answer)

    @property
    def vectors(self) -> SharedVectors:
        return self._vectors


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(WorkerSettings(tmp_path, tmp_path / "log", b"", Sizes(SIZE, answers=1), 1))
    yield made
    made.vectors.close()


def vector(value: float) -> FloatArray:
    return np.full(SIZE, value, dtype=np.float32)


def order(version: int, *, is_fresh: bool = False) -> Train:
    return Train(0, version + 1, 0, version, is_fresh=is_fresh)


@pytest.mark.asyncio
async def test_vectors_are_nobodys_while_they_are_written_and_then_their_orders(worker: Watched) -> None:
    for number in (1, 2, 3):
        await worker.train(order(number), [vector(number)], vector(-number))
        assert worker.vectors.loaded.array[0] == mark_of(number)
        assert (worker.vectors.agreed.array == number).all()
        assert worker.vectors.answer is not None
        assert (worker.vectors.answer.array == -number).all()
    assert worker.meanwhile == [0, 0, 0]


@pytest.mark.asyncio
async def test_what_is_there_already_is_not_written_again(worker: Watched) -> None:
    await worker.train(order(1), [vector(1)], vector(-1))
    await worker.train(order(1), [vector(9)], vector(-9))  # the second stint of a round
    assert (worker.vectors.agreed.array == 1).all()
    assert worker.vectors.loaded.array[0] == mark_of(2)
    await worker.train(order(1, is_fresh=True), [vector(2)], vector(-2))
    assert (worker.vectors.agreed.array == 2).all(), "another state of the same round"
    worker.forget()
    await worker.unload()
    await worker.train(order(1), [vector(2)], vector(-2))
    assert (worker.vectors.agreed.array == 2).all(), "the memory was given back meanwhile"
    assert len(worker.meanwhile) == 3


def test_marks_of_orders_that_follow_each_other_differ_and_are_whole_in_fp32() -> None:
    for number in (0, 1, MARKS - 1, MARKS, 5 * MARKS - 1):
        assert mark_of(number) != mark_of(number + 1)
        assert 0 < np.float32(mark_of(number)) == mark_of(number)


STEPS = 4


def ddp(clip: float | None = None) -> Bench:
    return Bench(DDP(lambda step: 0.1, (0.9, 0.95), 1e-8, 0.0, clip))


def delayed() -> Bench:
    return Bench(DelayedDiLoCo(STEPS, 1.0, 0.0))


def test_a_stint_that_hands_in_nothing_says_so_and_leaves_what_is_the_daemons() -> None:
    bench = delayed()
    bench.order(train(steps=STEPS, hand_in=False, is_fresh=True))
    assert bench.sent[-1] == Trained(1, 7)
    assert bench.steps() == [1, 2, 3, 4]
    assert torch.from_numpy(bench.contribution).isnan().all()
    assert not bench.moments.any()


def test_weights_are_shown_where_they_are_asked_for() -> None:
    bench = delayed()
    bench.order(train(1, steps=STEPS, is_fresh=True))
    bench.order(train(2, 8, steps=0, hand_in=False, shows=True))
    assert bench.sent[-1] == Trained(2, 8)
    assert bench.contribution.tolist() == bench.trainer.read().tolist() != [0.0] * 3
    assert bench.steps() == [1, 2, 3, 4]


def test_what_both_stints_have_made_is_one_contribution() -> None:
    bench = delayed()
    bench.order(train(1, steps=3, hand_in=False, is_fresh=True))
    bench.order(train(2, first=3, steps=1))
    assert bench.steps() == [1, 2, 3, 4]
    assert bench.sent[-1] == Contribution(2, 7, steps=4, tokens=40, loss=0.5)
    assert bench.contribution.tolist() == [8.0, 8.0, 8.0]
    assert [each.tokens for each in bench.sent if isinstance(each, Progress)] == [10, 20, 30, 40]


def test_a_stint_of_no_steps_hands_in_what_the_first_has_made() -> None:
    bench = delayed()
    bench.order(train(1, steps=STEPS, hand_in=False, is_fresh=True))
    bench.order(train(2, first=STEPS, steps=0))
    assert bench.sent[-1] == Contribution(2, 7, steps=4, tokens=40, loss=0.5)


def test_the_next_round_counts_from_nothing() -> None:
    bench = delayed()
    bench.order(train(1, 7, steps=STEPS, is_fresh=True))
    bench.order(train(2, 8, steps=STEPS, hand_in=False))
    bench.order(train(3, 8, first=STEPS, steps=0))
    assert bench.sent[-1] == Contribution(3, 8, steps=4, tokens=40, loss=0.5)


def test_a_worker_that_begins_with_the_second_stint_has_nothing_to_weigh() -> None:
    """The one that made the first is dead."""
    bench = delayed()
    bench.order(train(2, first=STEPS, steps=0))
    assert bench.sent[-1] == Contribution(2, 7, steps=0, tokens=0, loss=None)
    assert bench.contribution.tolist() == [0.0, 0.0, 0.0]


def test_a_hand_in_ends_the_first_stint_and_the_second_goes_on_to_nothing() -> None:
    bench = delayed()
    bench.trainer.before_step = lambda step: bench.orders.take(HandIn(1)) if step == 2 else None
    bench.order(train(1, steps=3, hand_in=False, is_fresh=True))
    bench.orders.take(HandIn(2))
    bench.order(train(2, first=3, steps=1))
    assert bench.sent[-2:] == [Trained(1, 7), Contribution(2, 7, steps=2, tokens=20, loss=0.5)]
    assert bench.contribution.tolist() == [4.0, 4.0, 4.0]


def test_weights_go_on_while_an_answer_is_under_way_and_go_back_where_it_lands() -> None:
    bench = delayed()
    bench.order(train(1, 7, steps=STEPS, is_fresh=True))
    assert bench.trainer.weights.tolist() == [-7.0] * 3
    bench.parameters.fill(5.0)
    bench.order(train(2, 8, steps=1, hand_in=False))
    assert bench.trainer.weights.tolist() == [-9.0] * 3
    bench.order(train(3, 8, first=1, steps=1, version=7, landings=(Landing(7, True, True, 3, ()),)))
    assert bench.trainer.weights.tolist() == [3.0] * 3
    bench.order(train(4, 8, first=2, steps=1, version=7, landings=(Landing(7, True, True, 3, ()),)))
    assert bench.trainer.weights.tolist() == [1.0] * 3, "an answer that has landed does not land again"


def test_a_fragment_is_as_much_of_the_contribution_as_its_numbers() -> None:
    layout = Layout({"layers.0.w": (2,), "norm": (1,)})
    bench = Bench(Streaming(layout, 1, STEPS, 0, 0.0, 1.0, 0.0))
    bench.order(train(1, 1, is_fresh=True))
    assert bench.contribution.tolist() == [8.0] * 3
    two = Bench(Streaming(Layout({"layers.0.w": (1,), "layers.1.w": (1,), "norm": (1,)}), 2, 6, 0, 0.0, 1.0, 0.0))
    two.order(train(1, 1, steps=2, is_fresh=True))
    assert two.contribution[0] == 4.0
    assert two.sent[-1] == Contribution(1, 1, steps=2, tokens=20, loss=0.5)


# -- gradients ----------------------------------------------------------------------------------------------


def test_a_gradient_is_handed_in_and_no_weight_is_moved() -> None:
    bench = ddp()
    bench.order(train(1, 7, lane=3, steps=1, is_fresh=True))
    assert bench.steps() == [1]
    assert bench.sent[-1] == Contribution(1, 7, steps=1, tokens=10, loss=0.5)
    assert bench.contribution.tolist() == [3.0] * 3
    assert bench.trainer.weights.tolist() == [1.0] * 3
    assert bench.trainer.steps == 0


def test_a_gradient_is_clipped_by_who_made_it() -> None:
    bench = ddp(clip=0.5)
    bench.order(train(1, 7, lane=3, steps=1, is_fresh=True))
    assert float(torch.from_numpy(bench.contribution).norm()) == pytest.approx(0.5)


def test_who_is_asked_before_its_gradient_hands_in_zeros_of_no_weight() -> None:
    bench = ddp()
    bench.contribution[:] = 9.0  # that of the round before
    bench.orders.take(HandIn(1))
    bench.order(train(1, 7, steps=1, is_fresh=True))
    assert bench.sent == [Contribution(1, 7, steps=0, tokens=0, loss=None)]
    assert bench.contribution.tolist() == [0.0] * 3


def test_the_next_gradient_is_taken_at_what_landed() -> None:
    bench = ddp()
    bench.order(train(1, 7, steps=1, is_fresh=True))
    bench.parameters.fill(5.0)
    bench.order(train(2, 8, steps=1, version=7, landings=(Landing(7, True, True, 3, ()),)))
    assert bench.trainer.weights.tolist() == [5.0] * 3
    assert bench.sent[-1] == Contribution(2, 8, steps=1, tokens=10, loss=0.5)


class Clock:
    """Moves when it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_and_pauses_are_weighed() -> None:
    clock, worker = Clock(), Utilisation()
    assert worker.share(0.0) == 1.0  # nothing was done yet, and nothing waited for
    with worker.working(clock):
        clock.now = 3.0
        assert worker.share(3.0) == 1.0
    assert worker.share(4.0) == 0.75
    clock.now = 4.0
    with worker.working(clock):
        clock.now = 6.0
        assert worker.share(6.0) == 5 / 6  # the stint that is under way counts so far
    assert worker.share(10.0) == 0.5


def test_only_the_latest_stints_count() -> None:
    clock, worker = Clock(), Utilisation()
    with worker.working(clock):
        clock.now = 1.0
    clock.now = 1000.0  # a long wait for the first others
    for _ in range(STINTS):
        with worker.working(clock):
            clock.now += 1.0
    assert worker.share(clock.now) == 1.0

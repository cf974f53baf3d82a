"""What a daemon writes for its worker's orders, and how a worker sees that it is being written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.node.worker.messages import Train
from shoal.node.worker.process import WorkerSettings
from shoal.node.worker.shm import FloatArray
from shoal.node.worker.vectors import MARKS, SharedVectors, Sizes, mark_of
from shoal.node.worker.workers import Worker

SIZE = 6


def ignored(*_: object) -> None:
    """Nothing is said here: no process is started."""


class Watched(Worker):
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

"""A supervisor asks its worker for a validation loss once, and takes one answer to the order that asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Contribution, Hurry, Train, Validated
from shoal.node.ipc.vectors import Sizes
from shoal.node.ipc.worker_end import WorkerEnd
from shoal.node.supervisor.process import WorkerSettings
from shoal.node.supervisor.supervisor import WorkerSupervisor
from shoal.protocol.base.wire import Message

SIZE = 4
PATIENCE = 20.0  # seconds


class Daemon:
    """A supervisor of a script, which this test plays, and what the supervisor passes on."""

    def __init__(self, folder: Path) -> None:
        self.contributions: list[Contribution] = []
        self.validated: list[tuple[int, Validated]] = []
        self.signs = 0
        self.lost: list[WorkerEnd] = []
        self.worker = WorkerSupervisor(
            WorkerSettings(folder, folder / "log", b"", Sizes(SIZE), 1, program=()),
            on_progress=print,
            on_contribution=self.contributions.append,
            on_trained=print,
            on_lost=self.lost.append,
            on_sign=self._on_sign,
            on_validated=lambda version, answer: self.validated.append((version, answer)),
        )

    async def order(self, round: int, validates: int = 8) -> None:
        vector = np.zeros(SIZE, dtype=np.float32)
        await self.worker.train(Train(0, round, 0, round - 1, is_fresh=True, validates=validates), [vector])

    async def script(self) -> WorkerLink:
        """The worker's end of a new connection."""
        while self.worker.socket is None:
            await asyncio.sleep(0.001)
        return await asyncio.to_thread(WorkerLink.connect, self.worker.socket)

    def _on_sign(self) -> None:
        self.signs += 1


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(folder)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(daemon.worker.run())
        try:
            yield daemon
        finally:
            await daemon.worker.stop()


async def heard(link: WorkerLink) -> Message:
    return await asyncio.to_thread(link.receive)


def validates(message: Message) -> int:
    assert isinstance(message, Train)
    return message.validates


@pytest.mark.asyncio
async def test_a_new_worker_does_not_repeat_a_measurement(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.order(3)
        first = await daemon.script()
        assert validates(await heard(first)) == 8
        first.close()
        while not daemon.lost:
            await asyncio.sleep(0.001)
        second = await daemon.script()
        assert validates(await heard(second)) == 0
        await daemon.order(4)
        assert validates(await heard(second)) == 8
        second.close()


@pytest.mark.asyncio
async def test_one_answer_to_the_order_that_asked_is_passed_on_with_the_round_of_its_state(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.order(3)
        link = await daemon.script()
        await heard(link)
        await daemon.order(4)
        await heard(link)
        link.send(Validated(2, 4, 2.0, 8, 0.1))
        link.send(Validated(2, 4, 1.0, 8, 0.1))  # once more
        link.send(Contribution(2, 4, 1, 10, 1.0))
        while not daemon.contributions:
            await asyncio.sleep(0.001)
        assert daemon.validated == [(3, Validated(2, 4, 2.0, 8, 0.1))]
        assert daemon.signs == 1, "a figure is no sign that there will be a contribution"
        link.close()


@pytest.mark.asyncio
async def test_the_time_of_a_measurement_counts_although_its_order_was_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.order(3)
        link = await daemon.script()
        await heard(link)
        await daemon.order(4, validates=0)
        await heard(link)
        link.send(Validated(1, 3, None, 4, 7.0))  # broken off
        link.send(Validated(1, 3, None, 4, 7.0))  # once more
        await daemon.order(5)
        await heard(link)
        await daemon.order(6, validates=0)
        await heard(link)
        link.send(Validated(3, 5, 9.0, 8, 1.0))  # of a state that is past
        link.send(Contribution(4, 6, 1, 10, 1.0))
        while not daemon.contributions:
            await asyncio.sleep(0.001)
        assert daemon.validated == [(2, Validated(1, 3, None, 4, 7.0)), (4, Validated(3, 5, None, 8, 1.0))]
        link.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Validated(1, 2, 1.0, 8, 0.1), "it was asked for round 3, not 2"),
        (Validated(1, 3, 1.0, 9, 0.1), "on 8 sequences at most, and names 9"),
        (Validated(1, 3, 1.0, 0, 0.1), "a loss on no sequence"),
        (Validated(1, 3, 1.0, 8, -0.5), "cannot have taken -0.5 seconds"),
        (Validated(1, 3, 1.0, 8, 1e300), "cannot have taken 1e+300 seconds"),
    ],
)
@pytest.mark.asyncio
async def test_a_figure_that_cannot_be_is_the_workers_mistake(tmp_path: Path, answer: Validated, said: str) -> None:
    async with running(tmp_path) as daemon:
        await daemon.order(3)
        link = await daemon.script()
        await heard(link)
        link.send(answer)
        while not daemon.lost:
            await asyncio.sleep(0.001)
        assert "broke the protocol: " in str(daemon.lost[0])
        assert said in str(daemon.lost[0])
        assert daemon.validated == []
        link.close()


@pytest.mark.asyncio
async def test_who_measures_is_hurried_and_who_does_not_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.order(3)
        link = await daemon.script()
        await heard(link)
        daemon.worker.hurry(3)
        assert await heard(link) == Hurry(1)
        await daemon.order(4, validates=0)
        daemon.worker.hurry(4)
        await daemon.order(5)
        assert [validates(await heard(link)) for _ in range(2)] == [0, 8]
        daemon.worker.hurry(6)
        await daemon.order(6)
        assert validates(await heard(link)) == 0, "the others waited already when it was ordered"
        link.close()

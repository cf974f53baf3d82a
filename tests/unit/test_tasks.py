"""Background tasks that belong to one owner."""

from __future__ import annotations

import asyncio

import pytest

from shoal.protocol.net.system.tasks import Tasks


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_what_a_task_raises_is_told_and_what_is_cancelled_has_not_failed() -> None:
    failures: list[Exception] = []
    tasks, error = Tasks(failures.append), ValueError("a bug")

    async def fail() -> None:
        raise error

    await asyncio.wait([tasks.spawn(fail()), tasks.spawn(asyncio.sleep(0))])
    endless = tasks.spawn(for_ever())
    await tasks.close()
    assert endless.cancelled()
    assert failures == [error]


@pytest.mark.asyncio
async def test_nothing_begins_after_the_end() -> None:
    begun: list[str] = []
    tasks = Tasks(lambda error: None)

    async def note(what: str) -> None:
        begun.append(what)

    async def work() -> None:
        try:
            await for_ever()
        finally:
            tasks.spawn(note("by a task's last breath"))

    tasks.spawn(work())
    await asyncio.sleep(0)
    await tasks.close()
    tasks.spawn(note("later"))
    await asyncio.sleep(0.01)
    assert begun == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_the_end_waits_for_what_tasks_do_last() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            ended.set()

    tasks = Tasks(lambda error: None)
    tasks.spawn(work())
    await asyncio.sleep(0)
    await tasks.close()
    assert ended.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}

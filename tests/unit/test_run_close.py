"""A run that is stopped keeps the checkpoint of the round that it was applying."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.run import Run


class Stopping(SimpleNamespace):
    """As much of a run as `close` touches."""

    def __init__(self) -> None:
        quiet = SimpleNamespace(command=lambda _: None, close=lambda: None)
        super().__init__(driver=quiet, member=SimpleNamespace(leave=None), training=None, _busy=asyncio.Lock())
        self.written: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._write: asyncio.Task[None] | None = None

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def apply(self, go_on: asyncio.Event) -> None:
        async with self._busy:
            await go_on.wait()
            self._write = self.spawn(self.write())

    async def write(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.written.append(1)


@pytest.mark.asyncio
async def test_what_is_being_applied_is_written_before_the_end() -> None:
    run, go_on = Stopping(), asyncio.Event()
    run.spawn(run.apply(go_on))
    await asyncio.sleep(0)
    closing = asyncio.create_task(Run.close(cast(Run, run)))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(closing, 10)
    assert run.written == [1]
    await asyncio.wait_for(Run.close(cast(Run, run)), 10)  # nothing is left to wait for

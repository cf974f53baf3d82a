"""A worker is ended before its run is left, and what it has left in shared memory stays until then."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.vectors import Sizes
from shoal.node.supervisor.process import WorkerSettings
from shoal.node.supervisor.supervisor import WorkerSupervisor

STUBBORN = ("sh", "-c", 'trap "" TERM; echo here; while :; do sleep 0.1; done')  # it neither connects nor hears SIGTERM


@pytest.mark.asyncio
async def test_a_worker_that_does_not_end_by_itself_is_killed_and_its_vectors_stay(tmp_path: Path) -> None:
    settings = WorkerSettings(tmp_path, tmp_path / "log", b"", Sizes(4), 1, program=STUBBORN, grace=0.05)
    worker = WorkerSupervisor(settings, on_progress=print, on_contribution=print, on_trained=print, on_lost=print)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while not ((tmp_path / "log").exists() and (tmp_path / "log").read_text()) or (pid := worker.pid) is None:
            await asyncio.sleep(0.001)
        resting = asyncio.create_task(worker.rest())
        while not resting.done():
            there = Path(f"/proc/{pid}").exists()
            assert worker.pid == pid or not there, "it counts as ours until it has ended"
            await asyncio.sleep(0.001)
        assert worker.pid is None
        assert not Path(f"/proc/{pid}").exists()
        assert not worker.is_over
        assert worker.contribution.shape == (4,)
        await worker.rest()  # again
        await worker.stop()


@pytest.mark.asyncio
async def test_one_that_was_stopped_before_it_began_rests_at_once(tmp_path: Path) -> None:
    settings = WorkerSettings(tmp_path, tmp_path / "log", b"", Sizes(4), 1, program=STUBBORN)
    worker = WorkerSupervisor(settings, on_progress=print, on_contribution=print, on_trained=print, on_lost=print)
    await worker.stop()
    await worker.run()
    await asyncio.wait_for(worker.rest(), 10)


@pytest.mark.asyncio
async def test_a_script_that_was_connected_is_known_after_we_hang_up(tmp_path: Path) -> None:
    settings = WorkerSettings(tmp_path, tmp_path / "log", b"", Sizes(4), 1, program=())
    worker = WorkerSupervisor(settings, on_progress=print, on_contribution=print, on_trained=print, on_lost=print)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while worker.socket is None:
            await asyncio.sleep(0.001)
        script = await asyncio.to_thread(WorkerLink.connect, worker.socket)
        while worker.pid != os.getpid():
            await asyncio.sleep(0.001)
        await worker.rest()
        assert worker.pid is None
        assert worker.scripts == {ProcessIdentity.own()}
        script.close()
        await worker.stop()

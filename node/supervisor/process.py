"""A worker's subprocess: starting it, ending it, and telling how it ended.

It is started from the thread of the event loop, never from a pool, because on Linux a worker asks the kernel to be
killed with the *thread* that started it. To end it, its socket is closed first, at which a healthy worker ends; then it
is terminated, then killed, always by its own process id only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from shoal.node.base.logs import rotate_if_large
from shoal.node.base.pools import DISK
from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes

LAST_WORDS = 1.0  # seconds in which to read what a process sent before it ended
DISK_WITHIN = 5.0  # seconds for opening or reading its log
GRACE = 2.0  # seconds between closing its socket, terminating and killing
BUILT_IN = (sys.executable, "-P", "-m", "shoal.node.worker.worker")  # -P: no module comes from the current folder


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a worker. Only the manifest is agreed with other peers."""

    folder: Path  # of the run: worker.sock lies here
    log: Path  # the worker's output is appended here; a large file is rotated first
    manifest: bytes  # canonical
    sizes: Sizes  # of the vectors that it shares with the daemon
    threads: int
    device: str = "auto"
    data: tuple[str, ...] = ()  # local files and folders
    program: tuple[str, ...] = BUILT_IN  # called with "--socket PATH"; empty: the user starts a script
    first_backoff: float = 1.0  # seconds before the first restart
    grace: float = GRACE
    trainer: TrainerOptions = field(default_factory=TrainerOptions)


class StartError(Exception):
    """The process could not be started."""


@asynccontextmanager
async def worker_process(settings: WorkerSettings, socket: Path) -> AsyncIterator[tuple[Process, int]]:
    """A running worker, and the size of its log before it; when the context is left, the worker has ended."""
    try:
        process, begin = await _start(settings, socket)
    except OSError as error:
        raise StartError(str(error)) from error
    try:
        yield process, begin
    finally:
        await _end(process, settings.grace)


def exit_reason(process: Process) -> str:
    """How a process ended, for people."""
    code = process.returncode
    if code is None or code >= 0:
        return f"ended with exit status {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"


async def wait_for_exit(process: Process) -> str:
    """Return "" once a process has ended, and there was time to read what it had sent."""
    await process.wait()
    await asyncio.sleep(LAST_WORDS)
    return ""


async def first_of(*coroutines: Coroutine[Any, Any, str]) -> str:
    """The result of the first coroutine that ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start(settings: WorkerSettings, socket: Path) -> tuple[Process, int]:
    try:
        async with asyncio.timeout(DISK_WITHIN):
            log, begin = await DISK.run(_opened, settings.log)
    except TimeoutError:
        raise StartError(f"{settings.log} cannot be opened: its disk does not answer") from None
    with log:
        process = await asyncio.create_subprocess_exec(
            *settings.program,
            "--socket",
            str(socket),
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env=_environment(settings.threads),
        )
    return process, begin


def _opened(log: Path) -> tuple[BinaryIO, int]:
    """A worker's log, opened for appending, and its size in bytes."""
    rotate_if_large(log)
    file = log.open("ab")
    return file, file.tell()


def _environment(threads: int) -> dict[str, str]:
    """Our environment, with the number of threads for the libraries that torch uses."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


async def _end(process: Process, grace: float) -> None:
    try:
        for harder in (process.terminate, process.kill):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace)
                return
            with suppress(ProcessLookupError):
                harder()
        await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        raise

"""A worker's subprocess: starting it, ending it, and telling how it ended.

It is started from the thread of the event loop, never from a pool, because on Linux a worker asks the kernel to be
killed with the *thread* that started it. A node of `shoal up` has its workers forked (node/base/fork_server.py). To end
a worker, its socket is closed first, at which a healthy one ends; then it is terminated, then killed, always by its own
process id only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal.node.base.fork_server import FORK_SERVER, MAX_PACKET, Program, exit_code, process_id, request
from shoal.node.base.logs import rotate_if_large
from shoal.node.base.pools import DISK
from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes

LAST_WORDS = 1.0  # seconds in which to read what a process sent before it ended
DISK_WITHIN = 5.0  # seconds for opening or reading its log
GRACE = 0.5  # seconds between closing its socket, terminating and killing: a paused node is off its devices in 2 s
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


class Process(Protocol):
    """What is needed of asyncio.subprocess.Process."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class ForkedProcess:
    """A process that a fork server has started for us."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._end = asyncio.ensure_future(self._wait())

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    async def _wait(self) -> int:
        with self._connection:
            return exit_code(await asyncio.get_running_loop().sock_recv(self._connection, MAX_PACKET))


@asynccontextmanager
async def worker_process(settings: WorkerSettings, path: Path) -> AsyncIterator[tuple[Process, int]]:
    """A running worker, and the size of its log before it; when the context is left, the worker has ended."""
    try:
        process, begin = await _start(settings, path)
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


async def _start(settings: WorkerSettings, path: Path) -> tuple[Process, int]:
    try:
        async with asyncio.timeout(DISK_WITHIN):
            log, begin = await DISK.run(_opened, settings.log)
    except TimeoutError:
        raise StartError(f"{settings.log} cannot be opened: its disk does not answer") from None
    argv, environ = [*settings.program, "--socket", str(path)], _environment(settings.threads)
    with log:
        process: Process | None = None
        program = Program.of(argv, environ, "shoal worker")
        if program is not None and (server := os.environ.get(FORK_SERVER)):
            with suppress(OSError):  # the server has ended: start it as elsewhere
                process = await _fork(server, program, log)
        if process is None:
            process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environ)
    return process, begin


async def _fork(server: str, program: Program, log: BinaryIO) -> ForkedProcess:
    connection = request(server, program, log.fileno())
    connection.setblocking(False)
    try:
        pid = process_id(await asyncio.get_running_loop().sock_recv(connection, MAX_PACKET))
    except BaseException:
        connection.close()
        raise
    return ForkedProcess(connection, pid)


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

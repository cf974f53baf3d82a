"""The child processes of `shoal up`, none of which outlives it.

Each child leads a session of its own, so that its own children die with its process group, and a Ctrl-C in the terminal
reaches `shoal up` alone. A daemon's worker, which the fork server starts, dies with the daemon (fork_server.py).
Children are asked to stop, and after a grace their whole group gets SIGKILL; a child that says that it is ending, such
as a node that saves a large run, is waited for as long as it takes. Everything but `Jobs` is synchronous: no signal
handled by the event loop can interrupt the clean-up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import BinaryIO

from shoal.node.api.answers import Answer
from shoal.node.base.fork_server import Forked, ForkServer, Program
from shoal.node.client.waiting import Step
from shoal.protocol.base.errors import LocalError, split_code

GRACE = 8.0  # seconds between the request to stop and SIGKILL
KILLED_WITHIN = 5.0  # seconds from SIGKILL until the process is gone
POLL = 0.02
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # workers set their number themselves


@dataclass(slots=True)
class Child:
    """One child process, and the process group that it leads."""

    process: subprocess.Popen[bytes] | Forked
    name: str
    is_ending: Callable[[], bool]  # asks the child whether it is
    is_group_killed: bool = False

    def code(self) -> int | None:
        """Its exit code, negative for a signal, None while it runs; a dead child's group is killed with it."""
        code = self.process.poll()
        if code is not None and not self.is_group_killed:
            self.is_group_killed = True
            if not isinstance(self.process, Forked):  # the fork server has done so
                self._signal_group(signal.SIGKILL)
        return code

    def ask(self) -> None:
        """Ask it to stop."""
        if self.code() is None:
            self.process.terminate()

    def kill(self) -> None:
        """Kill it and its group, and wait until it is gone, for KILLED_WITHIN at most."""
        if self.code() is None:
            self._signal_group(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it waits for a device, or the fork server hangs
                self.process.wait(KILLED_WITHIN)
            self.is_group_killed = True

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # gone, or (macOS) only zombies left
            os.killpg(self.process.pid, number)


@dataclass(slots=True)
class Children:
    """All children of this command; leaving the `with` block ends every one, and removes their temporary files."""

    grace: float = GRACE
    all: list[Child] = field(default_factory=list)
    scratch: TemporaryDirectory[str] = field(default_factory=lambda: TemporaryDirectory(prefix="shoal-up-"))
    server: ForkServer | None = None  # forks those that are modules of ours, so that they need not import torch each

    def start(
        self,
        argv: Sequence[str],
        log: Path,
        environ: Mapping[str, str] | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> Child:
        """Start `argv` in a session of its own; its output is appended to `log`, whose stem is the child's name."""
        log.parent.mkdir(parents=True, exist_ok=True)
        plain = {**_plain_environment(), "TMPDIR": self.scratch.name}
        with log.open("ab") as output:
            child = Child(self._spawn(argv, {**plain, **(environ or {})}, log.stem, output), log.stem, is_ending)
        self.all.append(child)
        return child

    def _spawn(
        self, argv: Sequence[str], environ: dict[str, str], name: str, output: BinaryIO
    ) -> subprocess.Popen[bytes] | Forked:
        program = Program.of(argv, environ, f"shoal {name}", leads_session=True)
        if self.server is not None and program is not None:
            with suppress(OSError):  # the server has ended, or hangs: start it by itself
                return self.server.fork(program, output)
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, start_new_session=True
        )

    def stop(self, say: Callable[[str], object] = lambda words: None) -> None:
        """End every child: all are asked at once, and those that are still there after the grace are killed.

        `say` gets a sentence for each child that is waited for longer.
        """
        for child in self.all:
            child.ask()
        self._wait()
        told = set[str]()
        while ending := [child for child in self.all if child.code() is None and child.is_ending()]:
            for child in ending:
                if child.name not in told:
                    pid = child.process.pid
                    say(
                        f"{child.name} is still saving its runs; waiting for it (`kill -9 {pid}` loses what is unsaved)"
                    )
                    told.add(child.name)
            self._wait()
        for child in self.all:
            child.kill()

    def _wait(self) -> None:
        """Wait until all have ended, for the grace at most."""
        deadline = time.monotonic() + self.grace
        while any(child.code() is None for child in self.all) and time.monotonic() < deadline:
            time.sleep(POLL)

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.scratch.cleanup()


def fork_server(log: Path | None = None) -> ForkServer:
    """A fork server for children: nodes, their workers, and jobs; what it says itself goes to `log`, or our stderr."""
    argv = [sys.executable, "-P", "-m", "shoal.node.client.up.forking"]
    return ForkServer(argv, _plain_environment() | ONE_THREAD, log)


def _plain_environment() -> dict[str, str]:
    """The environment without SHOAL_ variables: these set flags of `shoal up`, and would set those of its nodes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


# -- processes that compute something ------------------------------------------------------------------------------


JOB_POLL = 0.1
WEIGHTS = "--weights="  # before each folder in a job's arguments


class Jobs:
    """Runs the tasks of `job.py`; their output goes to `logs`, their answers to `jobs` in the output folder."""

    def __init__(self, children: Children, out: Path, weights: Sequence[Path] = ()) -> None:
        """`weights` are folders with base weights, for tasks that build a model of adapters."""
        self._children = children
        self._out = out
        self._weights = [f"{WEIGHTS}{folder.absolute()}" for folder in weights]
        self.running: list[str] = []  # names of the jobs

    def look(self) -> Step:
        """How far the running jobs are, as far as they tell."""
        told = [(name, share) for name in self.running if (share := read_share(self._result(name))) is not None]
        words = ", ".join(f"{name} {share:.0%}" for name, share in told) if len(told) > 1 else ""
        return Step(words, sum(share for _, share in told) / len(told) if told else None)

    async def run(self, name: str, task: str, *arguments: object) -> Answer:
        """Run one task and return its answer; LocalError with the last line of its log if it fails."""
        result = self._result(name)
        log = self._out / "logs" / f"{name}.log"
        result.parent.mkdir(exist_ok=True)
        argv = [sys.executable, "-P", "-m", "shoal.node.client.up.job", *self._weights, str(result), task]
        argv += map(str, arguments)
        child = self._children.start(argv, log, ONE_THREAD)
        self.running.append(name)
        try:
            while child.code() is None:
                await asyncio.sleep(JOB_POLL)
        finally:
            self.running.remove(name)
        if child.code() != 0:
            [last] = log.read_text(errors="replace").splitlines()[-1:] or [f"exit status {child.code()}"]
            words, code = split_code(last)
            raise LocalError(f"{name} failed: {words} (its log is {log})", code=code)
        answer: Answer = json.loads(result.read_text())
        return answer

    def _result(self, name: str) -> Path:
        return self._out / "jobs" / f"{name}.json"


def share_file(result: Path) -> Path:
    """Where the job with this result tells how far it is."""
    return result.with_suffix(".share")


def read_share(result: Path) -> float | None:
    """The share of its work that a job has done; None if it does not tell."""
    try:
        return float(share_file(result).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None

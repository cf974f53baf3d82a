"""Real daemons of one benchmark: forked from one server that has imported what they need, each in a home of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.base.fault_injection import FAULT_VARIABLE, MARK
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import ShoalError

POLL = 0.05  # seconds


class TooLate(Exception):
    """What was waited for has not come; the message says what, and has the end of the logs."""


class Daemon:
    """One `shoal node start --foreground`; `fault` is a SHOAL_FAULT, or empty."""

    def __init__(self, children: Children, folder: Path, bootstrap: str, fault: str) -> None:
        self.fault = fault
        self._home = Home(folder / "home").create()
        self._log = folder / "node.log"
        settings = NodeSettings(
            home=self._home.root,
            port=0,
            listen_host="127.0.0.1",
            admin_port=0,
            threads=1,
            bootstrap=(bootstrap,) if bootstrap else (),
        )
        environ = {"SHOAL_HOME": str(self._home.root), FAULT_VARIABLE: fault}
        self._start = partial(children.start, foreground_argv(settings), self._log, environ)
        self._child = self._start()
        until(lambda: self._home.read_daemon() is not None, "a daemon to start", 120.0, self.words)
        self.address = str(self.client.status()["addresses"][0])

    @property
    def client(self) -> Client:
        """Of its API, which has another port after a restart."""
        return Client(self._home)

    @property
    def is_struck(self) -> bool:
        """Whether its fault has struck."""
        return MARK in self.words()

    def row(self) -> Answer:
        """Its only run, as `status` shows it; empty if it is in none, or does not answer."""
        try:
            rows = self.client.status()["runs"]
        except ShoalError:
            return {}
        return dict(rows[0]) if rows else {}

    def kill(self) -> None:
        """SIGKILL, unless it is dead already; on return it is."""
        if self._child.code() is None:
            os.kill(self._child.process.pid, signal.SIGKILL)
        until(lambda: self._child.code() is not None, "the end of a daemon", 30.0, self.words)

    def restart(self) -> None:
        """SIGKILL of the daemon and its worker, and a new daemon at once, which enters its runs by itself."""
        pids = self.processes()
        for pid in pids:
            with suppress(ProcessLookupError):  # the worker has seen its daemon die
                os.kill(pid, signal.SIGKILL)
        self.kill()
        self._child = self._start()

    def processes(self) -> list[int]:
        """The daemon and its workers."""
        daemon = self._child.process.pid
        children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text(encoding="ascii")
        return [daemon, *map(int, children.split())]

    def run_folder(self, run: str) -> Path:
        """Where its home has the run's files."""
        return self._home.run_folder(run)

    def words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""


def until(condition: Callable[[], object], what: str, patience: float, words: Callable[[], str] = str) -> None:
    """Wait for a condition; TooLate, with these words, if that takes longer than `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TooLate(f"waited {patience:g} s for {what}\n{words()}")
        time.sleep(POLL)

"""Real daemons for tests: each is a process with its own home and port, and is asked through its API."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.base.fault_injection import FAULT_VARIABLE
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Child, Children
from shoal.protocol.base.errors import ShoalError

PATIENCE = 120.0  # seconds; a deadline for a busy machine, never a fixed sleep
Doors = str | Sequence[str]  # one bootstrap address, or several


class RealNode:
    """One `shoal node start --foreground`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "home").create()
        self.log = folder / "node.log"
        self.child: Child | None = None
        self.prefix: tuple[str, ...] = ()  # of its command line, such as a limit of memory

    def start(self, children: Children, bootstrap: Doors = (), fault: str = "", **settings: Any) -> RealNode:
        """Start the process and wait until it answers."""
        return self.launch(children, bootstrap, fault, **settings).ready()

    def launch(self, children: Children, bootstrap: Doors = (), fault: str = "", **more: Any) -> RealNode:
        """Start the process; `more` are settings that are added to the usual ones, or replace them."""
        usual: dict[str, Any] = {"port": 0, "listen_host": "127.0.0.1", "admin_port": 0, "threads": 1}
        doors = (bootstrap,) if isinstance(bootstrap, str) else tuple(bootstrap)
        settings = NodeSettings(home=self.home.root, bootstrap=doors, **(usual | more))
        environ = {"SHOAL_HOME": str(self.home.root), FAULT_VARIABLE: fault}
        self.child = children.start([*self.prefix, *foreground_argv(settings)], self.log, environ)
        return self

    def ready(self) -> RealNode:
        """Wait until it answers."""
        until(lambda: self.home.read_daemon() is not None, f"{self.folder.name} to start", self.words)
        return self

    @property
    def client(self) -> Client:
        return Client(self.home)

    @property
    def address(self) -> str:
        return str(self.client.status()["addresses"][0])

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.process.pid

    @property
    def workers(self) -> list[int]:
        """Its child processes, which train; only of a node that was started by itself, with a `prefix`."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, unless it is dead already; wait for its end."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.is_running, f"the death of {self.folder.name}", self.words)

    def row(self) -> Answer:
        """Its only run, as `status` shows it; empty while it is in no run or still entering it, or does not answer."""
        try:
            rows = [row for row in self.client.status()["runs"] if row["phase"] != "restoring"]
        except ShoalError:
            return {}
        return dict(rows[0]) if rows else {}

    def round(self) -> int:
        return int(self.row().get("round", -1))

    def voters(self, run: str) -> list[str]:
        """Who votes in a run, as far as it knows."""
        return [each["peer"] for each in self.client.run_details(run)["members"] if each["votes"]]

    def saved_state(self, run: str) -> str:
        """SHA-256 of the state file that it writes."""
        path = self.folder / "state.safetensors"
        self.client.save_state(run, str(path))
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def await_words(self, words: str) -> None:
        """Wait until they are in its log: a thread of the daemon writes that, so what a status shows may come first."""
        until(lambda: words in self.log.read_text(errors="replace"), f"{words!r} in its log", self.words)

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "no log"


def join_all(nodes: Sequence[RealNode], manifest: str) -> str:
    """Create the run on the first node, join it on the others."""
    run = str(nodes[0].client.create_run(manifest, True)["run"])
    for node in nodes[1:]:
        until(lambda node=node: node.client.peers(), "a connection", node.words)  # type: ignore[misc]
        node.client.join_run(run, True)
    return run


def words_of(*nodes: RealNode) -> str:
    """The run and the end of the log of each node, for a failure."""
    return "\n".join(f"{node.folder.name}: {node.row()}\n{node.words()}" for node in nodes)


def write_text(folder: Path) -> Path:
    """A file of English-like text to train on."""
    text = folder / "text.txt"
    text.write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(5000)))
    return text


def until(condition: Callable[[], Any], what: str, words: Callable[[], str], patience: float = PATIENCE) -> float:
    """Wait for a condition; the seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < patience, f"waited {patience:.0f} s for {what}\n{words()}"
        time.sleep(0.02)
    return time.monotonic() - begin

"""A local node as `shoal up` sees it: a child process, and an ordinary daemon behind its HTTP API.

The last answers of its API are kept, so that it is still known of a dead peer how far it had come.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.base.fault_injection import FAULT_VARIABLE, MARK, Fault
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings, default_threads
from shoal.node.base.pools import LONG
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.launch import foreground_argv, is_ending
from shoal.node.client.up.plan import Plan
from shoal.node.client.up.processes import Child, Children
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

START_WITHIN = 120.0  # seconds until the API answers: a cold disk reads torch and libp2p slowly
POLL = 0.1
LOG_TAIL = 12  # lines of a log that explain an unexpected death

T = TypeVar("T")


class LocalPeer:
    """One daemon: started, watched and called here, stopped with all other children."""

    def __init__(self, name: str, out: Path) -> None:
        self.name = name
        self.folder = out / "peers" / name
        self.log = out / "logs" / f"{name}.log"
        self.state_file = self.folder / "state.safetensors"
        self.own_file = self.folder / "own.safetensors"  # its worker's weights, where they differ from the state
        self.home = Home(self.folder / "home")
        self.id = ""
        self.status: Answer = {}
        self.row: Answer = {}  # the run's part of the status
        self.device = ""  # on which it trained when last seen
        self.collected = 0  # the last round whose record was asked for
        self.child: Child | None = None
        self.armed = False  # whether it was started with a fault
        self.told: dict[str, str] = {}  # what its status says now, by the event that was made of it
        self.gone = False  # it has died, as was planned
        self._client: Client | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.code() is None

    @property
    def addresses(self) -> list[str]:
        """Where others reach it."""
        return list(self.status.get("addresses", []))

    @property
    def round(self) -> int:
        """The last round that it has applied."""
        return int(self.row.get("round", 0))

    def start(self, children: Children, plan: Plan, bootstrap: str | None, fault: Fault | None = None) -> None:
        """Start the daemon; `ready` waits until it answers."""
        settings = NodeSettings(
            home=self.home.root,
            port=0,
            listen_host="127.0.0.1",
            admin_port=0,
            bootstrap=(bootstrap,) if bootstrap else (),
            threads=threads(len(plan.peers)),
            device=plan.device_of(self.name),
            data=plan.data,
            share_data=False,  # all peers have it
            checkpoint_every=plan.checkpoint_every,
            trainer=TrainerOptions(weights=tuple(map(str, plan.weights))),
        )
        plan.give_key(self.name, self.home)
        environ = {"SHOAL_HOME": str(self.home.root), FAULT_VARIABLE: str(fault or "")}
        self.armed = fault is not None
        self.child = children.start(foreground_argv(settings), self.log, environ, lambda: is_ending(self.home))

    async def ready(self) -> None:
        """Wait until the API answers; LocalError with the end of the log if it never does."""
        deadline = time.monotonic() + START_WITHIN
        while (info := self.home.read_daemon()) is None:
            if not self.alive or time.monotonic() > deadline:
                raise LocalError(f"{self.name} did not start; {self.last_words()}", code="start-failed")
            await asyncio.sleep(POLL)
        self._client = Client(self.home)
        self.id = info.peer
        self.status = await self.ask(Client.status)

    async def ask(self, call: Callable[[Client], T]) -> T:
        """Call the daemon's API in a thread; an error names this peer."""
        assert self._client is not None
        try:
            return await LONG.run(call, self._client)
        except ShoalError as error:
            kind = TransportError if isinstance(error, TransportError) else LocalError
            raise kind(f"{self.name}: {error} (its log is {self.log})", code=error.code) from error

    async def observe(self, run: str | None) -> None:
        """Update what is known of the peer from its API."""
        self.status = await self.ask(Client.status)
        self.row = next((row for row in self.status["runs"] if row["run"] == run), self.row)
        self.device = self.row.get("device") or self.device

    def last_words(self) -> str:
        """The end of its log, for an error message."""
        return f"its log, {self.log}, ends with\n" + "\n".join(self._log_lines()[-LOG_TAIL:])

    def fault_report(self) -> str | None:
        """How far it had come when its fault struck; None if it did not strike."""
        last = next(iter(self._log_lines()[-1:]), "")
        return last.removeprefix(MARK).strip() if last.startswith(MARK) else None

    def _log_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []


def threads(peers: int) -> int:
    """Threads of each worker: all peers share this machine's cores."""
    return max(1, min(default_threads(), (os.cpu_count() or 1) // peers))

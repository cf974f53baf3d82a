"""Real nodes on the machines of a lab."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Child, Children
from shoal.protocol.base.errors import ShoalError
from tests.integration.nodes import until
from tests.netlab.segments import Host


class LabNode:
    """A `shoal node start --foreground` on a machine."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.home = Home(folder / "home").create()
        self.log = folder / "node.log"
        self.child: Child | None = None
        self.before = ""  # Python that its process runs first: what a test changes about a node that nobody can set

    @property
    def door(self) -> str:
        """Where others knock, if they can reach its machine."""
        return f"/ip4/{self.host.address}/tcp/4101"

    def start(self, children: Children, **settings: Any) -> LabNode:
        """Start the process; it shows itself on the local network unless told otherwise.

        If the children have a fork server, that is one which runs on the machine.
        """
        asked = NodeSettings(home=self.home.root, port=4101, admin_port=0, threads=1, **settings)
        argv = self._patched(foreground_argv(asked))
        argv = argv if children.server is not None else self.host.argv(*argv)
        self.child = children.start(argv, self.log, {"SHOAL_HOME": str(self.home.root)})
        return self

    def _patched(self, argv: list[str]) -> list[str]:
        if not self.before:
            return argv
        at = argv.index("-m")
        whole = f"{self.before}; import runpy; runpy.run_module('{argv[at + 1]}', run_name='__main__', alter_sys=True)"
        return [*argv[:at], "-c", whole, *argv[at + 2 :]]

    def ask(self, what: Callable[[Client], Any]) -> Any:
        """The answer of its API, asked on its machine; None while there is none."""
        with suppress(ShoalError):
            return self.host.on(lambda: what(Client(self.home)))
        return None

    def status(self) -> Any:
        """Its status; empty while it does not answer."""
        return self.ask(lambda client: client.status()) or {}

    def state(self) -> str:
        """SOLO, CONNECTED, ...; empty while it does not answer."""
        return str(self.status().get("state", ""))

    def peers(self) -> set[str]:
        """The PeerIDs that it is connected with."""
        return {row["peer"] for row in self.ask(lambda client: client.peers()) or ()}

    def name(self) -> str:
        """Its PeerID."""
        return str(self.status()["peer"])

    def run(self) -> str:
        """The id of its only run, by which others find it through any node; waits until it is in one."""
        rows: list[dict[str, Any]] = []

        def is_in_one() -> bool:
            rows[:] = self.status().get("runs") or ()
            return bool(rows)

        until(is_in_one, "a run", self.words)
        return str(rows[0]["run"])

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "no log"

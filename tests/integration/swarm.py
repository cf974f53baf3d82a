"""Daemons that several tests (plays) share, so that each play starts one daemon only.

In each play one of three members dies, and a newcomer takes its place; the newcomer is the next play's victim. The
first daemon, by which all others find the swarm, is never the one that dies.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, words_of, write_text

MEMBERS = 3
FATAL = 2  # the round in which one is killed


class Swarm:
    """Real daemons on one text, in no run between two plays."""

    def __init__(self, folder: Path, forking: ForkServer) -> None:
        self._folder = folder
        self._children = Children(grace=0.0, server=forking)  # how nodes say goodbye is tested elsewhere
        self._started = 0
        self.nodes: list[RealNode] = []
        self.text = write_text(folder)

    def gather(self) -> tuple[list[RealNode], RealNode]:
        """Three members, of which the last one kills itself in the all-reduce of round FATAL, and a newcomer."""
        while len(self.nodes) <= MEMBERS:
            self._start(f"kill round={FATAL}" if len(self.nodes) >= MEMBERS - 1 else "")
        *members, newcomer = [node.ready() for node in self.nodes]
        return members, newcomer

    def words(self) -> str:
        """The runs and logs of all nodes, for a failure."""
        return words_of(*self.nodes)

    def tidy_up(self) -> None:
        """Have the living nodes leave their runs; end all of them if the victim still lives."""
        live = [node for node in self.nodes if node.is_running]
        if len(live) == MEMBERS and live[0] is self.nodes[0]:
            for node in live:
                for run in node.client.runs():
                    node.client.leave_run(run["run"])
            self.nodes = live
        else:
            for node in live:
                node.kill()
            self.nodes = []

    def _start(self, fault: str) -> None:
        node = RealNode(self._folder / f"n{self._started}")
        self._started += 1
        if self.nodes:
            node.launch(self._children, self.nodes[0].address, fault, data=(self.text,))
        else:
            node.start(self._children, fault=fault, data=(self.text,))
        self.nodes.append(node)

    def __enter__(self) -> Swarm:
        self._children.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.__exit__(kind, error, trace)

"""Scripts as workers, as users start them: two nodes and the processes beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until

PATIENCE = 300.0  # seconds; a script imports torch, and perhaps more


class Script:
    """A process that a user would start; its words are in a file."""

    def __init__(self, node: RealNode, *arguments: str) -> None:
        self.said = node.folder / "script.log"
        environ = {**os.environ, "SHOAL_HOME": str(node.home.root), "OMP_NUM_THREADS": "1"}
        with self.said.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environ)

    def words(self) -> str:
        return self.said.read_text(errors="replace")[-3000:]

    def link(self) -> str:
        """The run's, once it is said."""
        until(lambda: "shoal2" in self.words() or self.process.poll() is not None, "the link", self.words, PATIENCE)
        found = re.search(r"shoal2\w+", self.words())
        assert found, self.words()
        return found[0]

    def end(self) -> None:
        until(lambda: self.process.poll() is not None, "the script to end", self.words, PATIENCE)
        assert self.process.returncode == 0, self.words()


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[RealNode, RealNode]]:
    """The second knows the first; neither is in a run."""
    with Children(grace=0.0) as children:
        first = RealNode(folder / "n0").start(children)
        yield first, RealNode(folder / "n1").start(children, first.address)


@contextmanager
def all_ended() -> Iterator[list[Script]]:
    """Scripts that are put into the list, and killed at the end."""
    started: list[Script] = []
    try:
        yield started
    finally:
        for script in started:
            if script.process.poll() is None:
                script.process.kill()
            script.process.wait()

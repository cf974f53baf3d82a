"""The README's starts, word for word: what stands in the `sh` blocks below a heading, typed by a person at a terminal.

What a test may change is listed here, and nothing else: `LINK` is the link that the first machine has printed, and a
machine without a GPU types `cpu` for `cuda`. `shoal` is that of this tree.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.integration.nodes import PATIENCE, write_text
from tests.terminals import Terminal

ROOT = Path(__file__).parents[1]
GPU, TWO, COMPOSE, INSTALL = "A GPU box", "Two machines and a link", "Compose", "Install"
QUESTION = "Join? [y/N] "
POLL = 0.05


def blocks(title: str) -> list[list[str]]:
    """The blocks of commands below a heading of the README, each a list of lines."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text)
    assert found, f"the README has no heading '{title}'"
    return [block.splitlines() for block in re.findall(r"(?ms)^```sh\n(.*?)^```", found[1])]


def link_in(said: str) -> str:
    """The link in what `shoal run create` has said."""
    found = re.search(r"shoal run join (shoal2\w+)", said)
    assert found, said
    return found[1]


class Machine:
    """Somebody's machine: a home directory with texts in ~/notes, and `shoal` on the path."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self._prefix = prefix  # what starts a command on that machine, if it is a network namespace
        (folder / "notes").mkdir(parents=True)
        write_text(folder / "notes")
        command = folder / "bin" / "shoal"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m shoal.node "$@"\n')
        command.chmod(0o755)

    @property
    def home(self) -> Path:
        """The node's folder, where it is by default on Linux."""
        return self.folder / ".local/share/shoal"

    def types(self, line: str, patience: float = PATIENCE) -> str:
        """Type a line, answer its question with yes, and wait until it ends well; what it has said."""
        code, said = self.tries(line, patience)
        assert code == 0, f"{line}\n{said}"
        return said

    def tries(self, line: str, patience: float = PATIENCE) -> tuple[int, str]:
        """Type a line and wait for its end; its exit status and what it has said."""
        with Terminal(
            [*self._prefix, "env", "-C", str(self.folder), *self._environment(), "sh", "-c", line]
        ) as terminal:
            deadline, asked = time.monotonic() + patience, 0
            while terminal.process.poll() is None:
                if terminal.read().count(QUESTION) > asked:
                    asked += 1
                    terminal.type(b"y\n")
                assert time.monotonic() < deadline, f"waited {patience:.0f} s for the end of: {line}\n{terminal.said}"
                time.sleep(POLL)
            return terminal.process.returncode, terminal.read()

    def _environment(self) -> list[str]:
        """Arguments of `env`: nothing of this process's own settings counts there."""
        ours = [name for name in os.environ if name.startswith(("SHOAL_", "XDG_"))]
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return [*(f"--unset={name}" for name in ours), f"HOME={self.folder}", f"PATH={path}", "NO_COLOR=1"]

"""One real daemon for a benchmark, in a home of its own, ended with the `with` block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 300.0  # seconds, also of a busy machine


class Node:
    """`shoal node start --foreground` on free ports, with further settings as environment variables."""

    def __init__(self, **settings: str) -> None:
        self._settings = settings

    def __enter__(self) -> Node:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-bench-")
        self.environ = {**os.environ, **self._settings, "SHOAL_HOME": str(Path(self._folder.name) / "home")}
        argv = [*shoal("node", "start", "--foreground"), "--port", "0", "--admin-port", "0"]
        self.process = subprocess.Popen(argv, env=self.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while self.run("status").returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the daemon does not start: try `shoal node start --foreground`")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._folder.cleanup()

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Runs a command of the CLI that asks this node."""
        return subprocess.run(shoal(*words), env=self.environ, capture_output=True, timeout=PATIENCE)

    def ask(self, *words: str) -> Any:
        """The answer of a command, from its JSON; SystemExit if the command fails."""
        done = self.run(*words, "--json")
        if done.returncode:
            raise SystemExit(f"shoal {' '.join(words)}: {done.stderr.decode(errors='replace')}")
        return json.loads(done.stdout)

    def round_of(self, name: str) -> int:
        """The last round of the run of this name on this node; -1 if it is in none."""
        return max((int(run["round"]) for run in self.ask("status")["runs"] if run["name"] == name), default=-1)


def shoal(*words: str) -> list[str]:
    """The installed command, as a user types it."""
    return [str(Path(sys.executable).with_name("shoal")), *words]

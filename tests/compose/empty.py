"""Containers with nothing but Python in them, and the two wheels of `make wheel` in the folder `dist`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.compose.stack import BASE, PATIENCE, POLL, ROOT
from tests.integration.nodes import write_text

# What an owner may set: yes to every question, as nobody is at a terminal; the versions that the tests have seen; and
# that pip, which the image of tests/compose/engine has from Debian, installs for the whole system, as it does in the
# real one.
VARIABLES = (
    "SHOAL_YES=1",
    "PIP_CONSTRAINT=/root/constraints.txt",
    "PIP_BREAK_SYSTEM_PACKAGES=1",
    "PIP_ROOT_USER_ACTION=ignore",
)


class EmptyContainers:
    """Containers of the base image; leaving the `with` block removes them."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self._environ = {**os.environ, **environ}
        self._folder = folder
        self._started: list[str] = []

    def __enter__(self) -> EmptyContainers:
        """Build the wheels."""
        places = (f"VENV={self._folder / 'venv'}", f"DIST={self._folder / 'dist'}")
        make = ["make", "wheel", f"PYTHON={sys.executable}", *places]
        ours = ("MAKE", "MFLAGS", "PYTHON")
        outside = {name: value for name, value in self._environ.items() if not name.startswith(ours)}
        done = subprocess.run(make, cwd=ROOT, env=outside, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._started:
            self._call(["docker", "rm", "--force", "--volumes", name])

    def start(self, label: str) -> str:
        """A container that does nothing; its name."""
        name = f"shoal-test-{os.getpid()}-{label}"
        settings = [word for variable in VARIABLES for word in ("--env", variable)]
        given = (f"{self._folder / 'dist'}:/root/dist:ro", f"{ROOT / 'constraints.txt'}:/root/constraints.txt:ro")
        volumes = [word for each in given for word in ("--volume", each)]
        start = ["docker", "run", "--detach", "--init", "--name", name, "--workdir", "/root"]
        self._run([*start, *settings, *volumes, BASE, "sleep", "infinity"])
        self._started.append(name)
        return name

    def write_notes(self, container: str) -> None:
        """Texts in ~/notes."""
        (self._folder / "notes").mkdir()
        write_text(self._folder / "notes")
        self._run(["docker", "cp", str(self._folder / "notes"), f"{container}:/root/notes"])

    def types(self, container: str, line: str) -> str:
        """Run a line in a container's shell; its output."""
        return self._run(["docker", "exec", container, "sh", "-c", line])

    def until_counted(self, container: str) -> None:
        """Wait for a round in which this container's node and another one were counted in every chunk."""
        deadline = time.monotonic() + PATIENCE
        while not self._counted(container):
            assert time.monotonic() < deadline, self.types(container, "shoal status; shoal logs")
            time.sleep(POLL)

    def _counted(self, container: str) -> list[Any]:
        shown = self._call(["docker", "exec", container, "shoal", "run", "show", "text", "--json"])
        rounds = json.loads(shown.stdout)["rounds"] if shown.returncode == 0 else []
        return [each for each in rounds if each["took_part"] and each["contributors"] == 2]

    def _run(self, command: list[str]) -> str:
        done = self._call(command)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)

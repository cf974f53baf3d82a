"""The shipped Compose file on a real engine: one that is running, or our own; and how to ask its containers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.terminals import Terminal
from tests.tiers import required, requires

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).parent / "engine"
PROGRAMS = ("docker", "dockerd", "docker-compose", "debootstrap", "iptables")
BASE = "python:3.11-slim-bookworm"  # what the Dockerfile begins with
PATIENCE = 900.0  # seconds; a deadline for a busy machine, never a fixed sleep
POLL = 0.5


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """The environment in which `docker` finds an engine; skips, or fails if the tier must run, where none can be."""
    if _an_engine_answers():
        _requires_packages({})
        yield {}
        return
    may_install = "compose" in required() and shutil.which("apt-get") is not None
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    why = "only root can start one" if not is_root else f"{', '.join(missing)} is missing to start one"
    requires("compose", is_root and (may_install or not missing), f"no container engine answers, and {why}")
    start = [str(ENGINE), "start", *(["--install"] if missing else [])]
    started = subprocess.run(start, capture_output=True, text=True, check=False)
    requires("compose", started.returncode == 0, f"no container engine can be started: {started.stderr[-500:]}")
    name, _, value = started.stdout.splitlines()[-1].partition("=")
    try:
        _requires_packages({name: value})
        yield {name: value}
    finally:
        subprocess.run([str(ENGINE), "stop"], check=True)


def _requires_packages(environ: dict[str, str]) -> None:
    """Go on if a container reaches the Python registry, from which the image is built; else skip, or fail, as above."""
    ask = ["docker", "run", "--rm", BASE, "python", "-m", "pip", "download", "--no-deps", "--dest", "/tmp", "msgpack"]
    try:
        asked = subprocess.run(ask, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=180)
    except subprocess.TimeoutExpired:
        requires("compose", False, "a container that asks for a Python package gets no answer")
    else:
        requires("compose", asked.returncode == 0, f"a container gets no Python package: {asked.stderr[-500:]}")


def _an_engine_answers() -> bool:
    if shutil.which("docker") is None or not compose_commands():
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def compose_commands() -> list[list[str]]:
    """The installed ones of `docker compose` (2) and `docker-compose` (1.29), the newer one first."""
    commands = [["docker", "compose"], ["docker-compose"]]
    there = [command for command in commands if shutil.which(command[0]) is not None]
    return [
        command
        for command in there
        if subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
    ]


class Stack:
    """One project of the shipped Compose file; its output is checked, and at the end all of it is removed."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.project = f"shoal-test-{os.getpid()}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.page_port = int(free.getsockname()[1])
        ours = {"COMPOSE_PROJECT_NAME": self.project, "SHOAL_PAGE_PORT": str(self.page_port), "SHOAL_PEERS": "3"}
        self._environ = {**os.environ, **environ, **ours}
        self._compose = compose_commands()[0]

    def compose(self, *arguments: str) -> str:
        """Run a command of Compose; its output."""
        return self._run([*self._compose, *arguments])

    def types(self, line: str) -> str:
        """Type a line of the README at a terminal, in the checkout; its output.

        `docker compose` is `docker-compose` where only that is installed.
        """
        typed = line.replace("docker compose", " ".join(self._compose), 1)
        with Terminal(["env", "-C", str(ROOT), "sh", "-c", typed], self._environ) as terminal:
            deadline = time.monotonic() + PATIENCE
            while terminal.process.poll() is None:
                terminal.read()
                assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for: {line}\n{terminal.said[-3000:]}"
                time.sleep(POLL)
            assert terminal.process.returncode == 0, f"{line}\n{terminal.read()[-3000:]}"
            return terminal.read()

    def docker(self, *arguments: str) -> str:
        """Run a command of the engine; its output."""
        return self._run(["docker", *arguments])

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers."""
        return self.compose("ps", "-q", service).split()

    def status(self, container: str) -> dict[str, Any]:
        """`shoal status --json` in a container, with its run's keys beside the node's; empty while none answers."""
        asked = self._call(["docker", "exec", container, "shoal", "status", "--json"])
        if asked.returncode != 0:
            return {}
        status = json.loads(asked.stdout)
        run, *_ = status["runs"] or [{}]
        return {**run, **status}

    def left(self) -> list[str]:
        """Everything of the project that exists."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return [each for kind in kinds for each in self.docker(*kind, "--quiet", "--filter", label).split()]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition; failing, show what the containers said."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE:.0f} s for {what}\n{self.compose('logs', '--tail=40')}")
            time.sleep(POLL)

    def _run(self, command: list[str]) -> str:
        done = self._call(command)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=ROOT, env=self._environ, capture_output=True, text=True, check=False)

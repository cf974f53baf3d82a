"""No started process is left behind, even if it or its own children ignore signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.node.base import fork_server
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Child, Children

DEAF = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
signal.pause()
"""


def wait_for_line(log: Path) -> str:
    deadline = time.monotonic() + 60
    while not (text := log.read_text()).endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return text.strip()


def is_gone(pid: int) -> bool:
    """Whether nothing runs under `pid` any more; a zombie that nobody has collected yet does not run."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


SAVING = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: (open({marker!r}, "w").close(), time.sleep(1), print("saved"), exit(0)))
print("up", flush=True)
signal.pause()
"""


def start(
    children: Children, program: str, tmp_path: Path, is_ending: Callable[[], bool] = lambda: False
) -> tuple[Child, Path]:
    log = tmp_path / "logs" / "child.log"
    return children.start([sys.executable, "-c", program], log, is_ending=is_ending), log


def test_a_willing_child_ends_in_order(tmp_path: Path) -> None:
    with Children() as children:
        child, log = start(children, "print('up', flush=True); import signal; signal.pause()", tmp_path)
        wait_for_line(log)
        assert child.code() is None
    assert child.code() == -signal.SIGTERM


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_a_deaf_child_and_its_own_child_are_killed(tmp_path: Path) -> None:
    with Children(grace=0.1) as children:
        child, log = start(children, DEAF, tmp_path)
        worker = int(wait_for_line(log))
    assert child.code() == -signal.SIGKILL
    assert is_gone(worker)


def test_a_child_that_says_that_it_is_ending_is_waited_for_aloud(tmp_path: Path) -> None:
    marker, said = tmp_path / "marker", list[str]()
    with Children(grace=0.1) as children:
        child, log = start(children, SAVING.format(marker=str(marker)), tmp_path, marker.exists)
        wait_for_line(log)
        children.stop(said.append)
    assert child.code() == 0
    assert log.read_text().endswith("saved\n")
    (words,) = said
    assert words.startswith("child is still saving its runs; waiting for it (")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_the_death_of_a_child_is_the_death_of_its_group(tmp_path: Path) -> None:
    with Children() as children:
        child, log = start(children, DEAF, tmp_path)
        worker = int(wait_for_line(log))
        child.process.send_signal(signal.SIGKILL)
        while child.code() is None:
            time.sleep(0.01)
        assert is_gone(worker)


def test_flags_given_by_variable_are_not_for_the_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_BOOTSTRAP", "/ip4/192.0.2.7/tcp/4101")
    with Children() as children:
        program = "import os; print([name for name in os.environ if name.startswith('SHOAL_')])"
        child, log = start(children, program, tmp_path)
        while child.code() is None:
            time.sleep(0.01)
        assert log.read_text() == "[]\n"


def test_temporary_files_of_the_children_go_with_them(tmp_path: Path) -> None:
    with Children() as children:
        _, log = start(children, "import tempfile; print(tempfile.mkdtemp(), flush=True)", tmp_path)
        left = Path(wait_for_line(log))
        assert left.exists()
    assert not left.exists()


def test_where_nothing_can_be_forked_children_are_started_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "CAN_FORK", False)
    monkeypatch.delattr("socket.SOCK_SEQPACKET")  # which macOS has not for Unix sockets
    with ForkServer([sys.executable, "-c", "pass"], os.environ) as server, Children(server=server) as children:
        asyncio.run(server.ready())
        child = children.start([sys.executable, "-P", "-m", "this"], tmp_path / "child.log")
        assert child.process.wait(60) == 0
        assert server.pid is None, "it would import torch for nothing"
    assert "Zen" in (tmp_path / "child.log").read_text()

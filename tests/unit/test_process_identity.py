"""A process gets a signal only if it is proven to be the one whose number was written down."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.client import launch
from shoal.protocol.base.errors import LocalError

PATIENCE = 30.0
INTRODUCE = (
    "import sys; from shoal.node.base.process_identity import ProcessIdentity; "
    "print(ProcessIdentity.own(), flush=True); sys.stdin.read()"
)
HOLD = """
import sys
from pathlib import Path
from shoal.node.base.home import Home
with Home(Path(sys.argv[1])).create().locked():
    print("locked", flush=True)
    sys.stdin.read()
"""
LISTEN = """
import os, sys
from pathlib import Path
from shoal.node.base.home import DaemonInfo, Home
from shoal.node.base.process_identity import network_namespace
home = Home(Path(sys.argv[1])).create()
with home.locked():
    home.write_daemon(DaemonInfo(os.getpid(), "127.0.0.1", int(sys.argv[2]), "peer", network=network_namespace()))
    print("locked", flush=True)
    sys.stdin.read()
"""
NAMESPACE = ["unshare", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="pid namespaces take Linux, root and util-linux",
)


def started(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    with started(sys.executable, "-c", INTRODUCE) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_what_it_wrote_down(other: subprocess.Popen[str]) -> None:
    life = ProcessIdentity.parse(first_line(other))
    assert life is not None
    assert life.pid == other.pid
    assert life.is_here()
    assert life.signal(signal.SIGTERM)
    assert other.wait(PATIENCE) == -signal.SIGTERM
    assert not life.is_here()
    assert not life.signal(signal.SIGTERM)


def test_a_process_that_has_ended_is_none_though_its_parent_has_not_asked(other: subprocess.Popen[str]) -> None:
    life = ProcessIdentity.parse(first_line(other))
    assert life is not None
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert not life.is_here()


@pytest.mark.parametrize("field", ["boot", "namespace", "started"])
def test_a_pid_with_any_other_mark_is_another_process(other: subprocess.Popen[str], field: str) -> None:
    life = ProcessIdentity.parse(first_line(other))
    assert life is not None
    marks: tuple[dict[str, Any], ...] = ({field: "1"}, {field: "-"})
    for elsewhere in (*(replace(life, **mark) for mark in marks), ProcessIdentity(life.pid)):
        assert not elsewhere.is_here()
        assert not elsewhere.signal(signal.SIGKILL)
    assert other.poll() is None


@pytest.mark.parametrize("text", ["", "x", "-1 a b c", "1 a", "1 a b c d", "²", "9" * 99])
def test_what_is_no_life_is_none(text: str) -> None:
    assert ProcessIdentity.parse(text) is None


def test_a_pid_alone_as_older_versions_wrote_it_is_read() -> None:
    assert ProcessIdentity.parse("4711\n") == ProcessIdentity(4711)
    assert ProcessIdentity.parse(str(ProcessIdentity.own())) == ProcessIdentity.own()


@needs_namespaces
def test_a_node_of_another_pid_namespace_is_not_stopped_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, sent = Home(tmp_path / "home").create(), []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *what: sent.append(what))
    with started(*NAMESPACE, sys.executable, "-c", HOLD, str(home.root)) as inside:
        try:
            assert first_line(inside) == "locked\n"
            life = home.daemon_process()
            assert life is not None
            assert life.pid != inside.pid  # a number of the namespace's own, which another process has here
            assert not life.is_here()
            with pytest.raises(LocalError, match="in another container") as refused:
                launch.stop(home, print)
            assert "kill -9" not in str(refused.value)
            assert sent == []
        finally:
            inside.kill()


@needs_namespaces
def test_a_port_of_another_network_namespace_is_shown_no_token(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = str(stranger.getsockname()[1])
        with started(*NAMESPACE, sys.executable, "-c", LISTEN, str(home.root), port) as inside:
            try:
                assert first_line(inside) == "locked\n"
                with pytest.raises(LocalError, match="of another container or machine: ask it there"):
                    Client(home)
            finally:
                assert inside.stdin is not None
                inside.stdin.close()
                inside.wait(PATIENCE)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_a_port_of_our_own_network_is_asked(tmp_path: Path) -> None:
    with started(sys.executable, "-c", LISTEN, str(tmp_path / "home"), "4180") as near:
        assert first_line(near) == "locked\n"
        assert Client(Home(tmp_path / "home")).port == 4180

"""The messages to systemd, on a socket of its kind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.daemon.service_manager import DEFAULT_PAUSE, EXTENSION, ServiceManager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def test_ready_alive_and_stopping(systemd: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.getsockname()})
    manager.ready()
    manager.alive("CONNECTED;\nin no run")
    manager.stopping()
    manager.still_stopping()
    said = [systemd.recv(1000) for _ in range(4)]
    assert said == [b"READY=1", b"STATUS=CONNECTED; in no run", b"STOPPING=1", b"EXTEND_TIMEOUT_USEC=30000000"]
    assert 2 * manager.pause < EXTENSION  # a word that comes late does no harm
    assert manager.pause == DEFAULT_PAUSE


def test_the_watchdog_is_fed_twice_in_its_time(systemd: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager(environ)
    assert manager.pause == 4.0
    manager.alive("well")
    assert systemd.recv(1000) == b"STATUS=well\nWATCHDOG=1"
    assert ServiceManager(environ | {"WATCHDOG_PID": "1"}).pause == DEFAULT_PAUSE  # it watches another process


@pytest.mark.skipif(not Path("/proc/self/net/unix").exists(), reason="only Linux has abstract sockets")
def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0shoal-test-{os.getpid()}")
        listener.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": f"@shoal-test-{os.getpid()}"}).ready()
        assert listener.recv(1000) == b"READY=1"


def test_only_a_leading_at_sign_means_an_abstract_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify@home"))
        listener.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": listener.getsockname()}).ready()
        assert listener.recv(1000) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_nobody_listens(environ: dict[str, str]) -> None:
    ServiceManager(environ).ready()

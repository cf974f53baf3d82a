"""A node whose process is there but shows no life costs a command two seconds; one that is only slow is waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api import client, liveness
from shoal.node.api.client import Client, NoDaemon, NotAnswering
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home, find_home
from shoal.node.base.stacks import request_stacks
from shoal.node.client import launch
from shoal.protocol.base.errors import TransportError
from tests.bad_situations import Left, contents, shown
from tests.fake_service import LINK, RUN, FakeService
from tests.unit.test_cli import FAKE_DAEMON, Shoal, background, node, shoal

__all__ = ["background", "node", "shoal"]  # fixtures

PATIENCE = 120.0
MANIFEST = Path(__file__).parents[2] / "examples" / "stdlib.toml"
ASKING = [
    *(["status"], ["status", "--exit-code", "--json"], ["peers"], ["netcheck"], ["doctor", "somebody"]),
    *(["run", each] for each in ("ls", "discover")),
    *(["run", each, RUN] for each in ("show", "link", "leave", "preview")),
    *(["run", "join", LINK, "--yes"], ["run", "create", str(MANIFEST)]),
    *(["logs", "--round", "3"], ["experts", "stdlib"]),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A fake node in a process of its own that was sent SIGSTOP."""
    home = Home(tmp_path_factory.mktemp("stopped")).create()
    argv = [sys.executable, str(FAKE_DAEMON), "node", "start", "--foreground", "--admin-port", "0", "--port", "0"]
    with home.daemon_log.open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | {"SHOAL_HOME": str(home.root)})
    try:
        until(lambda: home.read_daemon() is not None, "the node to start")
        os.kill(process.pid, signal.SIGSTOP)
        yield home
    finally:
        process.kill()
        process.wait()


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, sooner."""
    monkeypatch.setattr(liveness, "ALIVE_WITHIN", 0.2)
    for name in ("FORCED_PATIENCE", "LAST_SILENCE"):
        monkeypatch.setattr(launch, name, 0.2)


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_each_command_says_that_it_hangs_and_what_to_do(
    shoal: Shoal, stopped: Home, impatient: None, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(stopped.root))
    before = contents(stopped.root)
    code, out, err = shoal(*command)
    assert out == ""
    shown("the node hangs", code, err, Left.in_folder(stopped.root, before))
    pid = stopped.daemon_pid()
    assert err.startswith(f"shoal: the node (pid {pid}) does not answer: it has shown no life for ")
    for words in (", and has logged nothing since 2", f"`kill -CONT {pid}`", "`shoal bugreport`", f"`kill -9 {pid}`"):
        assert words in err
    assert err.count("\n") == 1


def test_it_costs_two_seconds(shoal: Shoal, stopped: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(stopped.root))
    begin = time.monotonic()
    assert shoal("run", "preview", LINK)[0] == Exit.NOT_ANSWERING
    assert 1.9 < time.monotonic() - begin < 4.0


def test_logs_need_no_answer(shoal: Shoal, stopped: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(stopped.root))
    assert shoal("logs")[0] == Exit.OK


def test_a_program_has_the_patience_that_it_asks_for(stopped: Home) -> None:
    with pytest.raises(NotAnswering, match="no life for 0 s"):
        Client(stopped, silence=0.1).status()
    with pytest.raises(NotAnswering, match="no life for 0 s"):
        Client(stopped, silence=0.1).join_run(LINK, True)


def test_one_that_was_stopped_before_it_listens_is_said_so(shoal: Shoal) -> None:
    script = (
        "import sys, time; from pathlib import Path; from shoal.node.base.home import Home\n"
        "with Home(Path(sys.argv[1])).create().locked(): print(flush=True); time.sleep(3600)"
    )
    home = find_home()
    with subprocess.Popen([sys.executable, "-c", script, str(home.root)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: (life := home.daemon_process()) is not None and life.state() == "T", "the process to stop")
            with pytest.raises(
                NoDaemon, match=f"is starting or ending; its process is stopped.*kill -CONT {process.pid}"
            ):
                Client(home)
        finally:
            process.kill()


# -- slow is not hung -----------------------------------------------------------------------------------------------


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer is looked after all the time."""
    monkeypatch.setattr(liveness, "CHECK_EVERY", 0.05)


def test_a_long_answer_is_waited_for_while_the_node_lives(
    node: FakeService, watchful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, looked = node.preview_run, list[float]()

    async def take_long(link: str) -> Any:
        async with asyncio.timeout(PATIENCE):
            while len(looked) <= 3:
                await asyncio.sleep(0.01)
        return await answer(link)

    monkeypatch.setattr(node, "preview_run", take_long)

    def look(host: str, port: int, within: float) -> bool:
        looked.append(within)
        return liveness.shows_life(host, port, within)

    monkeypatch.setattr(client, "shows_life", look)
    assert Client(find_home(), silence=0.5).preview_run(LINK)["name"] == "stdlib"
    assert looked[0] == 0.5


def test_a_node_that_gets_stuck_over_a_long_answer_is_noticed(
    node: FakeService, watchful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = threading.Event()

    def get_stuck(link: str) -> Any:
        noticed.wait(PATIENCE)
        raise TransportError("too late")

    monkeypatch.setattr(client, "BUSY_FOR", 0.3)
    monkeypatch.setattr(node, "preview_run", get_stuck)
    with pytest.raises(NotAnswering):
        Client(find_home()).preview_run(LINK)
    noticed.set()
    assert Client(find_home()).status()["state"] == "CONNECTED"  # once it is over


def test_lines_that_come_slowly_are_waited_for(
    node: FakeService, watchful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = node.examine

    async def slowly(peer: str) -> Any:
        async for line in examine(peer):
            await asyncio.sleep(0.1)
            yield line

    monkeypatch.setattr(node, "examine", slowly)
    assert [line["event"] for line in Client(find_home(), silence=0.5).examine("x")][-1] == "report"


def test_no_answer_is_waited_for_longer_than_the_caller_wants(
    node: FakeService, watchful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take_for_ever(link: str) -> Any:
        await asyncio.sleep(1)

    monkeypatch.setattr(node, "preview_run", take_for_ever)
    with pytest.raises(TransportError, match="gave no answer in 0 s"):
        Client(find_home(), most=0.2).preview_run(LINK)


def test_what_closes_or_refuses_a_connection_lives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not liveness.shows_life("127.0.0.1", port, 0.1)
    assert liveness.shows_life("127.0.0.1", port, 0.1)


# -- ending it ------------------------------------------------------------------------------------------------------


def start_stuck(shoal: Shoal, home: Home, monkeypatch: pytest.MonkeyPatch) -> int:
    """Start a node whose event loop is stuck, and which does not hear SIGTERM; returns its pid."""
    monkeypatch.setenv("FAKE_NODE", "stuck")
    assert shoal("node", "start", "--admin-port", "0")[0] == Exit.OK
    pid, info = home.daemon_pid(), home.read_daemon()
    assert pid is not None
    assert info is not None
    os.kill(pid, signal.SIGUSR1)
    until(lambda: not liveness.shows_life(info.admin_host, info.admin_port, 0.1), "the event loop to be stuck")
    return pid


def test_a_stopped_node_is_woken_to_end_in_good_order(shoal: Shoal, background: Home, impatient: None) -> None:
    shoal("node", "start", "--admin-port", "0")
    pid = background.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    code, out, err = shoal("node", "stop")
    assert (code, out) == (Exit.OK, f"stopped the node (pid {pid})\n")
    assert err == f"the node (pid {pid}) does not answer; its process is asked to end (SIGTERM)\n"
    assert background.daemon_pid() is None


def test_a_node_that_hangs_is_killed_in_the_end(
    shoal: Shoal, background: Home, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_PATIENCE", 0.2)
    pid = start_stuck(shoal, background, monkeypatch)
    code, out, err = shoal("node", "stop")
    assert code == Exit.OK
    assert out.startswith(f"killed the node (pid {pid}): its key, votes, logs and checkpoints are safe on disk; ")
    assert [f"(pid {pid}) does not answer" in err, f"(pid {pid}) has not ended; it is killed (SIGKILL)" in err] == [
        True
    ] * 2
    assert background.daemon_pid() is None


def test_a_node_that_hangs_while_it_drains_is_killed_in_the_end(
    shoal: Shoal, background: Home, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_PATIENCE", 0.2)
    monkeypatch.setattr(Client, "drain", lambda *_: os.kill(background.daemon_pid() or 0, signal.SIGUSR1))
    monkeypatch.setenv("FAKE_NODE", "stuck")
    shoal("node", "start", "--admin-port", "0")
    pid = background.daemon_pid()
    code, out, _ = shoal("drain", "--within", "1d")
    assert (code, out.startswith(f"killed the node (pid {pid})")) == (Exit.OK, True)
    assert background.daemon_pid() is None


def test_force_does_not_wait_for_a_node_that_is_saving(
    shoal: Shoal, background: Home, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ALIVE_WITHIN", 2.0)
    monkeypatch.setenv("FAKE_NODE", "slow")
    shoal("node", "start", "--admin-port", "0")
    pid = background.daemon_pid()
    code, out, _ = shoal("node", "stop", "--force")
    assert (code, out.startswith(f"killed the node (pid {pid})")) == (Exit.OK, True)
    assert background.daemon_pid() is None


def test_the_stacks_of_a_stuck_node_are_there_for_the_asking(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_stuck(shoal, background, monkeypatch)
    life = background.daemon_process()
    assert life is not None
    for _ in range(2):  # each request gets its own
        text = request_stacks(life, background.stacks)
        assert text.count("in _be_stuck") == 1
        assert "most recent call first" in text


def test_the_request_for_stacks_does_no_harm_to_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGURG)
        process.communicate(b"\n", timeout=PATIENCE)
        assert process.returncode == 0

"""The fork server: what it forks is as if started by itself, and nothing outlives whoever asked for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.node.base import fork_server
from shoal.node.base.fork_server import CAN_FORK, FORK_SERVER, SERVER_GONE, Forked, ForkServer, Program
from shoal.node.client.up import processes
from shoal.node.client.up.processes import Child

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="processes are forked on Linux only")
PATIENCE = 30.0
SERVER = """
import decimal, json, os, sys, signal, threading, time
from shoal.node.base.fork_server import serve
def say(**what):
    print(json.dumps(what), flush=True)
def main():
    match sys.argv[1:]:
        case ["describe", *rest]:
            say(arguments=rest, home=os.environ.get("HOME"), variables=len(os.environ), folder=os.getcwd(),
                leads=os.getsid(0) == os.getpid(), loaded="decimal" in sys.modules, input=sys.stdin.read(),
                name=open("/proc/self/comm").read().strip(), files=sorted(os.listdir("/proc/self/fd")))
            print("an error", file=sys.stderr)
        case ["exit", code]:
            threading.Thread(target=lambda: (time.sleep(0.05), say(thread="ended"))).start()
            sys.exit(int(code))
        case ["wait"]:
            say(pid=os.getpid())
            signal.pause()
        case ["fail"]:
            raise ArithmeticError("two and two")
        case ["another", path]:
            from shoal.node.base.fork_server import Forked, Program
            with open(path, "wb") as output:
                program = Program("forked_program", ("wait",), dict(os.environ), os.getcwd(), "child")
                child = Forked(os.environ["SHOAL_FORK_SERVER"], program, output.fileno())
            say(pid=child.pid)
            signal.pause()
serve({"forked_program": main})
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """One that has imported decimal."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with ForkServer([sys.executable, str(program)], os.environ) as server:
        yield server


def start(server: ForkServer, log: Path, *arguments: str, leads_session: bool = False) -> Forked:
    environ = {"HOME": "/nowhere"}
    program = Program("forked_program", arguments, environ, str(log.parent), "the name", leads_session)
    with log.open("ab") as output:
        return server.fork(program, output)


def test_a_program_gets_what_it_would_by_itself(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(server, log, "describe", "a b", "ä", leads_session=True)
    assert process.wait(PATIENCE) == 0
    said, error = log.read_text().splitlines()
    told = json.loads(said)
    assert told["arguments"] == ["a b", "ä"]
    assert (told["home"], told["variables"]) == ("/nowhere", 2)  # and the path of the server
    assert (told["folder"], told["leads"], told["input"], told["name"]) == (str(tmp_path), True, "", "the name")
    assert told["loaded"], "what the server has imported was imported anew"
    assert told["files"] == ["0", "1", "2", "3"], "files of the server are open in it, besides the listing's own"
    assert error == "an error"


def test_exit_codes_are_told(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert start(server, log, "exit", "7").wait(PATIENCE) == 7
    assert '{"thread": "ended"}' in log.read_text(), "an exit waits for threads"
    failed = start(server, tmp_path / "failed", "fail")
    assert failed.wait(PATIENCE) == 1
    assert "ArithmeticError: two and two" in (tmp_path / "failed").read_text()


def test_signals_end_it_and_its_end_is_noticed_without_waiting(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path / "log", "wait")
    assert process.pid == said_pid(tmp_path / "log")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    wait_for(lambda: process.poll() is not None)
    assert process.returncode == process.wait() == -signal.SIGTERM
    process.kill()  # of one that has ended does nothing


def test_who_closes_its_connection_loses_its_process(server: ForkServer, tmp_path: Path) -> None:
    parent = start(server, tmp_path / "parent", "another", str(tmp_path / "child"))
    child = said_pid(tmp_path / "child")
    other = start(server, tmp_path / "other", "wait")
    parent.kill()
    assert parent.wait(PATIENCE) == -signal.SIGKILL
    wait_for(lambda: is_gone(child))
    assert other.poll() is None
    other.kill()
    assert other.wait(PATIENCE) == -signal.SIGKILL


def test_closing_the_server_ends_all(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path / "log", "wait", leads_session=True)
    server.close()
    assert is_gone(process.pid)
    assert process.wait(PATIENCE) in (-signal.SIGKILL, SERVER_GONE)


def test_the_servers_death_is_that_of_all(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path / "log", "wait")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert process.wait(PATIENCE) == SERVER_GONE
    wait_for(lambda: is_gone(process.pid))
    with pytest.raises(ConnectionRefusedError):
        start(server, tmp_path / "log", "wait")


def test_what_is_not_in_its_table_is_refused(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as output, pytest.raises(OSError, match="antigravity is not a program of"):
        server.fork(Program("antigravity", (), {}, str(tmp_path), "name"), output)
    process = start(server, tmp_path / "log", "exit", "0")
    assert process.wait(PATIENCE) == 0


def test_a_command_line_of_something_else_is_not_forked() -> None:
    assert Program.of([sys.executable, "-P", "-m", "shoal.node", "up"], {}, "it") is not None
    assert Program.of([sys.executable, "-c", "pass"], {}, "it") is None
    assert Program.of(["prlimit", sys.executable, "-P", "-m", "shoal.node"], {}, "it") is None
    assert FORK_SERVER.startswith("SHOAL_"), "a user's own shell must not hand it on: such are not for children"


SLOW = """
import sys, time
print("importing", file=sys.stderr, flush=True)
time.sleep(600)
"""


@pytest.mark.asyncio
async def test_it_is_waited_for_while_the_event_loop_goes_on(server: ForkServer, tmp_path: Path) -> None:
    await asyncio.wait_for(server.ready(), PATIENCE)
    process = start(server, tmp_path / "log", "exit", "0")
    assert process.wait(PATIENCE) == 0


@pytest.mark.asyncio
async def test_one_that_cannot_be_started_is_waited_for_no_longer(tmp_path: Path) -> None:
    with ForkServer([sys.executable, "-c", "raise SystemExit('broken')"], os.environ, tmp_path / "log") as server:
        await asyncio.wait_for(server.ready(), PATIENCE)
        with pytest.raises(ConnectionRefusedError):
            start(server, tmp_path / "other", "exit", "0")
    assert (tmp_path / "log").read_text() == "broken\n"


@pytest.mark.asyncio
async def test_waiting_can_be_given_up_and_the_server_ends_at_once(tmp_path: Path) -> None:
    with ForkServer([sys.executable, "-c", SLOW], os.environ, tmp_path / "log") as server:
        waiting = asyncio.create_task(server.ready())
        while not (tmp_path / "log").exists() or (tmp_path / "log").read_text() != "importing\n":
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        pid, before = server.pid, time.monotonic()
        assert pid is not None
        server.close()
        assert time.monotonic() < before + 1.0
        assert is_gone(pid)


@pytest.mark.asyncio
async def test_one_that_hangs_is_waited_for_no_longer(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "ANSWERS_WITHIN", 0.1)
    monkeypatch.setattr(processes, "KILLED_WITHIN", 0.1)
    process = start(server, tmp_path / "log", "wait", leads_session=True)
    assert said_pid(tmp_path / "log") == process.pid
    child = Child(process, "child", lambda: False)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            start(server, tmp_path / "other", "wait")
        child.kill()
        wait_for(lambda: is_gone(process.pid))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    wait_for(lambda: child.code() == -signal.SIGKILL)


def said_pid(log: Path) -> int:
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    return int(log.read_text().split(": ")[1].rstrip("}\n"))


def is_gone(pid: int) -> bool:
    """Also if nobody has waited for it: whoever adopts orphans here may take its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

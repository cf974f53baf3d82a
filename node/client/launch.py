"""Starts a node's process and ends it, for the command line.

A node is always `python -m shoal.node node start --foreground`, whether a service manager starts it, `shoal up`, or
`start_in_background`, which only adds a session of its own and a log file. It reads the environment and config.toml by
itself, and so gets no more flags than its user gave. A node is ended by a request to its API. A
signal is the fallback: it only goes to the process that holds the home's lock just then, and only if that is proven to
run here (process_identity.py). A node that says that it is ending is waited for as long as it takes: it may be saving a
large run. One that shows no life is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO

from shoal.node.api import liveness
from shoal.node.api.client import Client, NoDaemon, NotAnswering
from shoal.node.api.operations import QUICK
from shoal.node.api.status import label
from shoal.node.base import started
from shoal.node.base.devices import check_is_here
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home
from shoal.node.base.logs import last_line, log_size, rotate_if_large
from shoal.node.base.options import NodeSettings
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.refusals import reason, refusal
from shoal.node.base.settings import Choice, flags_of
from shoal.node.base.stacks import stacks_on_request
from shoal.node.client.waiting import Waiting
from shoal.protocol.base.errors import LocalError, ShoalError, split_code, with_code
from shoal.protocol.base.multiaddrs import reach
from shoal.protocol.net.system.descriptors import raise_limit

START_PATIENCE = 120.0
STOP_PATIENCE = 30.0  # for each way of asking, and between two checks that the node is still ending
FORCED_PATIENCE = 5.0  # the same with --force
LAST_SILENCE = 10.0  # seconds without life after which a node that was asked to end is killed
KILLED_WITHIN = 5.0
POLL, DRAIN_POLL = 0.05, 0.5
EXIT_WITHIN = 2.0  # from when a process gives up its home to its exit
ERROR_PREFIX = "shoal: "  # of the last sentence of a process that ends with an error
WHAT_IS_LOST = "its key, votes, logs and checkpoints are safe on disk; of a run of replicas only checkpoints are kept"


def run_here(settings: NodeSettings, chosen: Mapping[str, Choice]) -> None:
    """Run the node in this process until it is asked to stop; `settings` are what was `chosen`."""
    raise_limit()  # of open files, before any is open
    check_is_here([settings.device])
    home = Home(settings.home).create()
    with home.locked(), stacks_on_request(home.stacks):
        os.chdir(home.root)  # as in the background: the present folder may be deleted, and torch needs one
        os.environ["SHOAL_HOME"] = str(home.root)
        import asyncio

        from shoal.node.base.logs import setup_logging
        from shoal.node.base.malloc import share_arenas
        from shoal.node.daemon.daemon import run

        share_arenas()  # before there are threads
        setup_logging()
        started.keep(home, chosen)
        asyncio.run(run(settings))


def start_in_background(settings: NodeSettings, flags: Sequence[str] = ()) -> list[str]:
    """Start a node that outlives this process; lines about it, once it answers. LocalError if it ends before.

    `settings` are what `flags`, the environment and config.toml come to.
    """
    check_is_here([settings.device])
    home = Home(settings.home).create()
    if (pid := home.daemon_pid()) is not None:
        raise LocalError(f"a node (pid {pid}) already runs in {home.root}: see `shoal status`", code="home-taken")
    rotate_if_large(home.daemon_log)
    with home.daemon_log.open("ab") as log:
        start_of_log = log.tell()
        child = _spawn(flags, home, log)
    try:
        with Waiting("starting the node"):
            return _wait_for_answer(child, settings, home, start_of_log)
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise


def _wait_for_answer(
    child: subprocess.Popen[bytes], settings: NodeSettings, home: Home, start_of_log: int
) -> list[str]:
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline:
        if (code := child.poll()) is not None:
            words = last_line(home.daemon_log, start_of_log, ERROR_PREFIX) or _log_problem(home.daemon_log)
            raise StartFailed(code, words, home.daemon_log)
        with suppress(ShoalError):
            lines = _description(Client(home), settings, home)
            child.returncode = 0  # so that Popen does not warn that the child is still running
            return lines
        time.sleep(POLL)
    raise LocalError(
        f"the node (pid {child.pid}) gave no answer in {START_PATIENCE:.0f} s: see {home.daemon_log}", code="node-slow"
    )


def _spawn(flags: Sequence[str], home: Home, log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the node in a session of its own, so that neither Ctrl-C nor closing the terminal reaches it.

    It begins in the present folder: the environment may hold paths that are relative to it.
    """
    return subprocess.Popen(
        node_argv(flags),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "SHOAL_HOME": str(home.root)},
        start_new_session=True,
    )


class StartFailed(LocalError):
    """The node's process ended before it answered, with `status`; `words` are its last, which may end with a code."""

    code = "start-failed"

    def __init__(self, status: int, words: str, log: Path) -> None:
        reason, code = split_code(words.removeprefix(ERROR_PREFIX))
        reason = reason or f"it said nothing and ended with {status}"
        super().__init__(f"the node did not start: {reason} (its log is {log})", code)
        self.exit = Exit(status) if status in set(Exit) else Exit.FAILED


def node_argv(flags: Sequence[str]) -> list[str]:
    """The command line that runs a node in the foreground."""
    return [sys.executable, "-P", "-m", "shoal.node", "node", "start", "--foreground", *flags]


def foreground_argv(settings: NodeSettings) -> list[str]:
    """The command line that runs a node with these settings in the foreground, see `flags_of`."""
    return node_argv(flags_of(settings))


def stop(home: Home, say: Callable[[str], object], force: bool = False) -> str:
    """End the home's node and wait until it is gone; returns a sentence about that. NoDaemon if there is none.

    A node that shows no life is killed in the end; with `force` any that has not ended in FORCED_PATIENCE, even if it
    is saving its runs. `say` gets a sentence about what is waited for, if that takes long.
    """
    life, end_of_log = home.daemon_process(), log_size(home.daemon_log)
    if life is None:
        raise NoDaemon(f"no node runs in {home.root}")
    names, found = dict[str, str](), Found.RUNNING
    try:
        client = Client(home, liveness.ALIVE_WITHIN)
        names = {run["run"]: label(run) for run in client.status()["runs"]}
        client.stop()
        found = _wait_until_gone(home, life, say, force)
    except NotAnswering:
        say(f"the node (pid {life.pid}) does not answer; its process is asked to end (SIGTERM)")
    except ShoalError:
        pass  # its process is asked instead
    if found is not Found.GONE:
        if not _ask_to_end(life) and home.daemon_process() == life:
            raise LocalError(
                f"the node in {home.root} (pid {life.pid} where it runs) cannot be asked to end by its API, and is no "
                "process that may be signalled from here: it is another user's, in another container or on another "
                "machine, or of an older version. Stop it there, as the user who started it",
                code="node-elsewhere",
            )
        found = _wait_until_gone(home, life, say, force)
    if found is Found.GONE:
        return _stopped(home, life, names, end_of_log)
    if force or found is Found.SILENT:
        return _kill(home, life, say)
    raise LocalError(
        f"the node (pid {life.pid}) does not end; `shoal node stop --force`, or else `kill -9 {life.pid}`, ends it: "
        f"{WHAT_IS_LOST}",
        code="node-slow",
    )


def drain(home: Home, within: float, say: Callable[[str], object]) -> str:
    """End the home's node once its rounds under way are over, or after `within` seconds; otherwise as `stop`.

    One that shows no life, or has not begun to end some time after that, is stopped as by `stop`, too.
    """
    life, end_of_log = home.daemon_process(), log_size(home.daemon_log)
    if life is None:
        raise NoDaemon(f"no node runs in {home.root}")
    client = Client(home, liveness.ALIVE_WITHIN)
    names = {run["run"]: label(run) for run in client.status()["runs"]}
    client.drain(within)
    say("waiting for the rounds under way (Ctrl-C ends the waiting only; `shoal node stop` stops the node at once)")
    deadline = time.monotonic() + within + STOP_PATIENCE
    while home.daemon_process() == life and time.monotonic() < deadline and _look(home, LAST_SILENCE) is Found.RUNNING:
        time.sleep(DRAIN_POLL)
    if home.daemon_process() == life:  # and not one that was started here as this one ended
        with suppress(NoDaemon):
            return stop(home, say)
    return _stopped(home, life, names, end_of_log)


def check_is_ours_to_restart(home: Home) -> None:
    """LocalError unless the home's node runs in the background; a service manager starts its nodes itself."""
    info = home.read_daemon()
    if info is None:
        raise NoDaemon(f"no node runs in {home.root}: start one with `shoal node start`")
    if not info.logs_here:
        raise LocalError(
            f"the node (pid {info.pid}) runs in the foreground, in a terminal, a container or under a service manager, "
            "and is to be restarted there, as by `systemctl restart shoal`; nothing was stopped",
            code="in-foreground",
        )


def _ask_to_end(life: ProcessIdentity) -> bool:
    """Ask the process to end, and wake it if it is stopped, as it could not do so otherwise; False if we may not."""
    was_asked = life.signal(signal.SIGTERM)
    life.signal(signal.SIGCONT)
    return was_asked


def _kill(home: Home, life: ProcessIdentity, say: Callable[[str], object]) -> str:
    """Kill the node's process; returns a sentence about that."""
    say(f"the node (pid {life.pid}) has not ended; it is killed (SIGKILL)")
    life.signal(signal.SIGKILL)
    deadline = time.monotonic() + KILLED_WITHIN
    while home.daemon_process() == life:
        if time.monotonic() > deadline:
            raise LocalError(
                f"not even SIGKILL has ended the node (pid {life.pid}): it waits for a disk or another device, and "
                "ends when that answers; see the system's log",
                code="node-slow",
            )
        time.sleep(POLL)
    return f"killed the node (pid {life.pid}): {WHAT_IS_LOST}"


def _stopped(home: Home, life: ProcessIdentity, names: Mapping[str, str], begin: int) -> str:
    """A sentence about a node that has ended; LocalError if its log, from `begin` on, ends with an error."""
    deadline = time.monotonic() + EXIT_WITHIN
    while life.is_here() and time.monotonic() < deadline:
        time.sleep(POLL)
    last = last_line(home.daemon_log, begin, ERROR_PREFIX)
    if last.startswith(ERROR_PREFIX):
        words, code = split_code(last.removeprefix(ERROR_PREFIX))
        ended = f"the node (pid {life.pid}) has ended, but {words} (its log is {home.daemon_log})"
        raise LocalError(ended, code=code or "node-failed")
    kept = [home.kept_vote(run).words(names.get(run, run[:8])) for run in home.kept_runs()]
    return "; ".join([f"stopped the node (pid {life.pid})", *kept])


class Found(Enum):
    """What became of a node that was asked to end."""

    GONE = auto()
    ENDING = auto()  # it says so: it may be saving a large run
    RUNNING = auto()
    SILENT = auto()  # it shows no life


def _wait_until_gone(home: Home, life: ProcessIdentity, say: Callable[[str], object], force: bool) -> Found:
    """Wait until `life` has released the home's lock, which a node does last, but no longer than our patience.

    A node that says that it is ending is waited for longer, unless `force`.
    """
    deadline, said = time.monotonic() + (FORCED_PATIENCE if force else STOP_PATIENCE), False
    while home.daemon_process() == life:
        if time.monotonic() > deadline:
            found = Found.RUNNING if force else _look(home, LAST_SILENCE)
            if found is Found.SILENT and said:
                raise LocalError(
                    f"the node (pid {life.pid}) was saving its runs, and does not answer any more: its disk may be "
                    f"slow. Wait and try again; `shoal node stop --force` ends it now: {WHAT_IS_LOST}",
                    code="node-slow",
                )
            if found is not Found.ENDING:
                return found
            if not said:
                who = f"the node (pid {life.pid})"
                say(f"{who} is still saving its runs; waiting for it (Ctrl-C ends the waiting only)")
            deadline, said = time.monotonic() + STOP_PATIENCE, True
        time.sleep(POLL)
    return Found.GONE


def is_ending(home: Home) -> bool:
    """Whether the node says that it is ending; False also if it does not answer, or refuses this client."""
    return _look(home, QUICK) is Found.ENDING


def _look(home: Home, silence: float) -> Found:
    """What the node says of itself; RUNNING also if it refuses this client, or is not there."""
    try:
        return Found.ENDING if Client(home, silence).status().get("ending") is True else Found.RUNNING
    except NotAnswering:
        return Found.SILENT
    except ShoalError:
        return Found.RUNNING


def _description(client: Client, settings: NodeSettings, home: Home) -> list[str]:
    """Lines with the node's id, the address that most peers can use, its log, and the ports that were taken."""
    status = client.status()
    addresses = sorted((str(each) for each in status["addresses"]), key=reach)
    moved = []
    if settings.port and not any(f"/tcp/{settings.port}/" in each for each in addresses):
        moved.append(f"port {settings.port}")
    if settings.admin_port not in (0, client.port):
        moved.append(f"admin port {settings.admin_port}")
    taken = f"; {' and '.join(moved)} {'were' if moved[1:] else 'was'} taken" if moved else ""
    more = f"  ({len(addresses) - 1} more: `shoal status --long`)" if addresses[1:] else ""
    return [
        f"started node {status['peer']} (pid {client.pid}){taken}",
        f"at   {addresses[0] if addresses else 'no address'}{more}",
        f"log  {home.daemon_log}",
    ]


def _log_problem(log: Path) -> str:
    """Why nothing can be written to the log (a full disk, a limit); empty if that is not so."""
    try:
        with log.open("ab") as file:
            file.write(b"\n")
    except OSError as error:
        lack = refusal(error)
        return with_code(f"nothing can be written to its log: {reason(error)}", lack.code if lack is not None else "")
    return ""

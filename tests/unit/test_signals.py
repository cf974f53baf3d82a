"""A process that is asked to end does so in good order, by whichever signal, and on a closed terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.terminals import Terminal

PATIENCE = 30.0
IGNORABLE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
LIVE = """
import asyncio, signal, sys
from pathlib import Path
from shoal.node.base.signals import on_ending

async def live():
    over = asyncio.Event()
    heard = []
    on_ending(lambda number: (heard.append(number.name), over.set()))
    print("ready", flush=True)
    await over.wait()
    print("saving", file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(heard[0])

asyncio.run(live())
"""
IGNORE = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"


@pytest.fixture(autouse=True)
def _nothing_is_ignored() -> Iterator[None]:
    """However the tests were started: `nohup`, and a shell in the background, have signals ignored below them."""
    ignored = [number for number in IGNORABLE if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def running(
    command: Sequence[str], stdin: int | None = None, stdout: int | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which is gone afterwards, whatever it did not hear."""
    with subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


def program(saved: Path) -> list[str]:
    return [sys.executable, "-c", LIVE, str(saved)]


def until_ready(terminal: Terminal) -> None:
    """Read to the end of the line: a terminal gets it last, and closing before would make writing it fail."""
    deadline = time.monotonic() + PATIENCE
    while "ready\r\n" not in terminal.read():
        assert time.monotonic() < deadline, terminal.said
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM"])
def test_each_usual_signal_is_heard(name: str, tmp_path: Path) -> None:
    with running(program(tmp_path / "saved"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, name))
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "saved").read_text() == name


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_who_is_asked_again_in_its_last_moments_ends_in_good_order_all_the_same(name: str, tmp_path: Path) -> None:
    """Between the end of the event loop and that of the process."""
    last = f"{LIVE}\nprint('over', flush=True)\nsys.stdin.readline()\n"
    command = [sys.executable, "-c", last, str(tmp_path / "saved")]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"ready\n", b"over\n"):
            assert process.stdout.readline() == line
            process.send_signal(getattr(signal, name))
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("moment", ["before the loop is closed", "after it"])
def test_a_task_that_ended_unasked_leaves_its_caller_to_the_signals(name: str, moment: str, tmp_path: Path) -> None:
    unasked = LIVE.replace("    await over.wait()", "    heard.append('nobody')")
    if "before" in moment:
        unasked = unasked.replace(
            "asyncio.run(live())", "loop = asyncio.new_event_loop()\nloop.run_until_complete(live())"
        )
    waits = "print('over', flush=True)\nimport time\nfor _ in range(3000):\n    time.sleep(0.01)\n"
    command = [sys.executable, "-c", f"{unasked}\n{waits}", str(tmp_path / "saved")]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in (b"ready\n", b"over\n"):
            assert process.stdout.readline() == line
        process.send_signal(getattr(signal, name))
        assert process.wait(PATIENCE) == -getattr(signal, name)


def test_a_closed_terminal_ends_it_in_good_order_though_its_last_words_reach_nobody(tmp_path: Path) -> None:
    with Terminal(program(tmp_path / "saved")) as terminal:
        until_ready(terminal)
        terminal.close()
        assert terminal.process.wait(PATIENCE) == 0
    assert (tmp_path / "saved").read_text() == "SIGHUP"


@pytest.mark.parametrize("keys", [b"\x03", b"\x03\x03", b"\x1c"])
def test_keys_that_interrupt_end_it_in_good_order(keys: bytes, tmp_path: Path) -> None:
    with Terminal(program(tmp_path / "saved")) as terminal:
        until_ready(terminal)
        terminal.type(keys)
        assert terminal.process.wait(PATIENCE) == 0
    assert (tmp_path / "saved").read_text() == ("SIGQUIT" if keys == b"\x1c" else "SIGINT")


def test_what_was_started_with_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", IGNORE, *program(tmp_path / "saved")]) as terminal:
        until_ready(terminal)
        terminal.close()
        terminal.process.send_signal(signal.SIGHUP)
        terminal.process.send_signal(signal.SIGTERM)  # it is only this that it hears
        assert terminal.process.wait(PATIENCE) == 0
    assert (tmp_path / "saved").read_text() == "SIGTERM"

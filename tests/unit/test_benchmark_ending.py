"""benchmarks/kit/ending.py: a signal ends a benchmark with its code, and nothing that it has started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.ending import ended, whole

from shoal.protocol.base.errors import LocalError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

WORK = """
import multiprocessing, sys, time
from pathlib import Path
from kit.ending import ended, processes
from shoal.node.client.up.processes import Children

def work():
    with Children() as children:
        child = children.start([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1]) / "log")
        with processes(2) as pool:
            pool.submit(int).result()
            several = [pool.submit(time.sleep, 600) for _ in range(4)]
            started = [each.pid for each in multiprocessing.active_children()]
            print(child.process.pid, *started, flush=True)
            several[0].result()

sys.exit(ended("work", work))
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_that_was_started(number: signal.Signals, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WORK, str(tmp_path)]
    process = subprocess.Popen(argv, cwd=BENCHMARKS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        started = [int(word) for word in process.stdout.readline().split()]
        process.send_signal(number)
        _, words = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, words
    assert f"work: {number.name}: ending" in words
    assert len(started) == 3
    assert not [pid for pid in started if is_alive(pid)]


def test_an_error_is_said_in_words_and_a_verdict_is_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise LocalError("no such family")

    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert (ended("work", fail), ended("work", lambda: 3)) == (1, 3)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert capsys.readouterr().err == "work: no such family\n"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(Exception, match="whole number from 1 on"):
        whole(1)(text)
    assert whole(1)("12") == 12

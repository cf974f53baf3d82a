"""Ends a long benchmark cleanly: with an exit code and a message, and without leaving processes behind.

Daemons lead sessions of their own, so a Ctrl-C, a closed terminal or a `kill` reaches this process alone. All of these
become a SystemExit, which leaves every `with` block on its way; further signals are ignored meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from shoal.protocol.base.errors import ShoalError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ended(name: str, work: Callable[[], int]) -> int:
    """The exit code of `work`: its result, or 1 after a ShoalError. A signal raises SystemExit(128 + its number)."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        print(f"{name}: {signal.Signals(number).name}: ending what was started", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    for each in SIGNALS:
        signal.signal(each, stop)
    try:
        return work()
    except ShoalError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, which are killed if the block is left by an error or a signal."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_deaf)
    try:
        yield pool
    except BaseException:
        for each in multiprocessing.active_children():
            each.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def whole(least: int) -> Callable[[str], int]:
    """An argparse type: whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return read


def _deaf() -> None:
    """Ignores Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

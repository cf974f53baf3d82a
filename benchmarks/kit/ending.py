"""How a long benchmark ends: with a code and words, and with nothing left of what it has started.

Daemons lead sessions of their own, so a Ctrl-C, a closed terminal or a `kill` reaches this process alone: all become a
SystemExit, which leaves every `with` block on its way. Further signals are ignored meanwhile; SIGKILL is not.
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
    """What `work` returns; 1, and words, after a ShoalError. A signal leaves it by SystemExit: 128 and its number."""

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
    """So many to work in; whoever leaves the block by an error or a signal does not wait for what they are at."""
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
    """A type of arguments: whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return read


def _deaf() -> None:
    """A Ctrl-C is for who has started us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

"""Pipes and terminals that nobody reads: full, as far as their writer can tell."""

from __future__ import annotations

import os
import pty
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 30.0  # seconds


@contextmanager
def full(kind: str) -> Iterator[tuple[int, int]]:
    """The read and the write end of "a pipe" or "a terminal" that is full."""
    ours, theirs = os.pipe() if kind == "a pipe" else pty.openpty()
    fill(theirs)
    yield ours, theirs
    for each in (ours, theirs):
        os.close(each)


def fill(descriptor: int) -> None:
    """Write until nothing more fits."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            os.write(descriptor, b"x")
    except BlockingIOError:
        pass
    os.set_blocking(descriptor, True)


def read_until(descriptor: int, end: bytes) -> bytes:
    """Read until `end` has come; all that was read."""
    os.set_blocking(descriptor, False)
    said, deadline = b"", time.monotonic() + PATIENCE
    while end not in said:
        assert time.monotonic() < deadline, said[-200:]
        try:
            said += os.read(descriptor, 1 << 16)
        except BlockingIOError:
            time.sleep(0.001)
    return said

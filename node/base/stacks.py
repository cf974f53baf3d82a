"""The stacks of all threads of a process, on request by a signal, also while it hangs.

The signal is SIGURG: a process that has not arranged for it, such as a node of an earlier version, ignores it. Python's
faulthandler writes the stacks in the signal's handler, so that neither a stuck event loop nor a thread that keeps the
interpreter to itself is in the way. A stopped process writes them once it goes on. The file begins with the identity of
the process that writes it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.node.base.process_identity import ProcessIdentity

REQUEST = signal.SIGURG
STACKS_FILE = "SHOAL_STACKS"  # the variable by which a worker is told its file
WORKER_STACKS = "worker-stacks.txt"  # in the folder of a run
WRITTEN_WITHIN = 1.0  # seconds
MAX_IDENTITY = 256  # bytes of a process identity
QUIET = 0.1  # seconds without a change, after which all is written
POLL = 0.02


@contextmanager
def stacks_on_request(path: Path) -> Iterator[None]:
    """While the context is open, each request appends the stacks of this process to the file, which begins anew."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # a node runs without its stacks, too
        yield
        return
    try:
        with suppress(OSError):  # such as a full disk
            os.write(handle, f"{ProcessIdentity.own()}\n".encode())
        faulthandler.register(REQUEST, handle, all_threads=True)
        yield
    finally:
        faulthandler.unregister(REQUEST)
        os.close(handle)


def writer_of(path: Path) -> ProcessIdentity | None:
    """The process that writes its stacks to a file on request, or has done so before it ended; None if unknown."""
    try:
        with path.open("rb") as file:
            return ProcessIdentity.parse(file.readline(MAX_IDENTITY).decode("ascii", "replace"))
    except OSError:
        return None


def request_stacks(process: ProcessIdentity, path: Path) -> str:
    """The stacks of a process with `stacks_on_request(path)`, written now; empty if none come."""
    before = _size(path)
    if not process.signal(REQUEST):
        return ""
    deadline = time.monotonic() + WRITTEN_WITHIN
    size, changed_at = before, time.monotonic()
    while time.monotonic() < deadline and (size == before or time.monotonic() - changed_at < QUIET):
        time.sleep(POLL)
        if (now := _size(path)) != size:
            size, changed_at = now, time.monotonic()
    with suppress(OSError), path.open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")
    return ""


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0

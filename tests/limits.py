"""Real limits for processes of tests: of memory (by address space or in a control group) and of open files."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

MIB = 1 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
ENTER = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execvp(sys.argv[2], sys.argv[2:])"


def with_address_space(limit: int) -> tuple[str, ...]:
    """A prefix for a command line: each of its processes may use `limit` bytes of address space."""
    code = "import os, resource, sys; n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_AS, (n, n)); "
    return sys.executable, "-c", f"{code}os.execvp(sys.argv[2], sys.argv[2:])", str(limit)


@contextmanager
def no_more_files() -> Iterator[None]:
    """In this context this process can open no more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with open(os.devnull) as highest:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno(), before[1]))
        with ExitStack() as taken:
            with suppress(OSError):
                while True:
                    taken.enter_context(open(os.devnull))
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def in_control_group(limit: int) -> Iterator[tuple[str, ...]]:
    """A prefix for a command line: it and its children may use `limit` bytes together; skips where that cannot be."""
    try:
        folder, limit_file = _made()
        (folder / limit_file).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"DOES NOT RUN: no control group with a limit of memory can be made here: {error}")
    try:
        yield sys.executable, "-c", ENTER, str(folder / "cgroup.procs")
    finally:
        folder.rmdir()


def _made() -> tuple[Path, str]:
    """A new group below ours, and its file for the limit."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    name = f"shoal-test-{os.getpid()}-{os.urandom(4).hex()}"
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            folder = V1 / path.lstrip("/") / name
            folder.mkdir()
            return folder, "memory.limit_in_bytes"
    path = next(path for number, _, path in lines if number == "0")
    folder = V2 / path.lstrip("/") / name
    folder.mkdir()
    if not (folder / "memory.max").exists():
        folder.rmdir()
        raise OSError("the memory controller is not delegated to us")
    return folder, "memory.max"

"""Limits how much freed memory glibc keeps, and tells how much memory a process holds.

glibc gives each thread an arena of its own, and keeps freed memory in it. The long computations of a round run in any
idle thread of a pool, so in time the arena of each thread holds as much as one computation needs. That looks like a
leak, and grows with the number of cores. Because of Python's lock threads allocate one after the other anyway, so few
arenas suffice. With other C libraries (macOS, musl) these functions do nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.protocol.tensors import memory

ARENAS = 2
M_ARENA_MAX = -8  # what mallopt(3) calls it
CHOSEN_BY = {"MALLOC_ARENA_MAX": "", "GLIBC_TUNABLES": "glibc.malloc.arena_max"}  # variables, and a part of their value


def share_arenas(environ: Mapping[str, str] = os.environ) -> None:
    """Make all new threads share ARENAS arenas, unless the environment sets another number."""
    if any(words in environ[name] for name, words in CHOSEN_BY.items() if name in environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Return free memory to the system, also that below memory in use. Takes milliseconds."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))


def sweep() -> None:
    """Collect reference cycles, and return all free memory to the system."""
    memory.release_memory()
    trim()


# -- how much is held ----------------------------------------------------------------------------------------------


def resident_bytes(pid: int | None = None) -> int | None:
    """The resident set of a process, ours by default; None if it cannot be read.

    So on other systems than Linux, if the process is gone, and if /proc belongs to another pid namespace.
    """
    try:
        if pid is not None and Path("/proc/self").readlink().name != str(os.getpid()):
            return None
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")

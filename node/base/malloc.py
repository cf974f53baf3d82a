"""Limits of how much freed memory glibc keeps.

glibc gives each thread its own arena of up to 64 MiB, and keeps in it as much as the largest objects that were freed
there. A round's long work runs in any idle thread of a pool, so in time each of them keeps as much as one needs: that
looks like a leak, and grows with the number of cores. Python's lock lets threads allocate one after the other anyway,
so few arenas suffice.

With other C libraries (macOS, musl) nothing happens. `resident_bytes` says how much a process holds.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.protocol.tensors import memory

ARENAS = 2
M_ARENA_MAX = -8  # what mallopt(3) calls it
CHOSEN_BY = {"MALLOC_ARENA_MAX": "", "GLIBC_TUNABLES": "glibc.malloc.arena_max"}  # variables, and what must be in them


def share_arenas(environ: Mapping[str, str] = os.environ) -> None:
    """Have threads that begin to allocate share ARENAS, unless the environment chooses another number."""
    if any(words in environ[name] for name, words in CHOSEN_BY.items() if name in environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Return free memory to the system, also below memory in use; this takes milliseconds."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))


def sweep() -> None:
    """Collect reference cycles, and return all free memory to the system."""
    memory.release_memory()
    trim()


# -- how much is held ----------------------------------------------------------------------------------------------


def resident_bytes(pid: int | None = None) -> int | None:
    """The resident set of a process, ours by default; None where it cannot be read (not Linux, or gone).

    Also where /proc is that of other containers, whose numbers stand for other processes.
    """
    try:
        if pid is not None and Path("/proc/self").readlink().name != str(os.getpid()):
            return None
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")

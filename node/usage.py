"""How much memory a process holds just now, as the system counts it."""

from __future__ import annotations

import os
from pathlib import Path


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

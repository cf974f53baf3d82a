"""How many files and sockets this process may have open, and how many of them strangers may take.

The system gives each new one the lowest number that is free, so the number of one says how many are taken. Two rules:
- What comes from outside and has one of the last RESERVE numbers is closed at once. So whoever comes, and however many,
  the last RESERVE are for our own files: votes, checkpoints, workers, the owner's commands.
- What lasts is bounded by shares of all that is left: connections, payloads' sockets, handshakes.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from shoal.protocol.base.errors import LocalError

WANTED = 65_536  # more than this node ever needs; a system without a limit is not asked for everything
LEAST = 128  # below, there is no room for a run and for others at a time
OWN = 48  # open before anybody has come: listeners, loops, logs
RESERVE = 96


def raise_limit() -> int:
    """Have as many open files as the system lets us; how many that is. LocalError if a node cannot live with them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has another limit, of its kernel, below the one that it shows
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if (most := limit()) < LEAST:
        raise LocalError(
            f"this process may have only {most} files and connections open at a time, and a node needs {LEAST} at "
            f"least: raise the limit with `ulimit -n {max(1024, LEAST)}`, or where the service is set up (LimitNOFILE)"
        )
    return most


def limit() -> int:
    """How many may be open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def is_reserved(descriptor: int) -> bool:
    """Whether the number of something from outside shows that we are left with what is our own."""
    most = limit()
    return descriptor >= most - _reserve(most)


def share(part: float, most: int) -> int:
    """How many there may be of a kind: this part of what is not our own, at most `most`, at least one."""
    return max(1, min(most, int(part * (limit() - _reserve(limit()) - OWN))))


def _reserve(most: int) -> int:
    return min(RESERVE, most // 2)

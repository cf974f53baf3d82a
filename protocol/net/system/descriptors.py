"""How many files and sockets this process may have open, and how many of them strangers may take.

The system gives each new descriptor the lowest free number, so its number says how many are taken. Rules:
- An incoming connection with one of the last RESERVE numbers is closed at once. So however many strangers come, the
  last RESERVE descriptors are left for our own files: votes, checkpoints, workers, the owner's commands.
- Each kind of lasting descriptor (connections, bulk sockets, handshakes) is bounded by a share of the rest.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from shoal.protocol.base.errors import LocalError

WANTED = 65_536  # open files: more than a node ever needs, and what is asked for if the system has no limit
LEAST = 128  # with fewer, a run and other peers do not fit at the same time
OWN = 48  # open before any peer has come: listeners, event loops, logs
RESERVE = 96


def raise_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it. LocalError if it is below LEAST."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the kernel of macOS has a lower limit than the one it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if (most := limit()) < LEAST:
        raise LocalError(
            f"this process may have only {most} files and connections open at a time, and a node needs {LEAST} at "
            f"least: raise the limit with `ulimit -n {max(1024, LEAST)}`, or where the service is set up (LimitNOFILE)",
            code="too-few-files",
        )
    return most


def limit() -> int:
    """How many files may be open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def is_reserved(descriptor: int) -> bool:
    """Whether an incoming connection with this descriptor must be closed, as it took one of the reserved numbers."""
    most = limit()
    return descriptor >= most - _reserve(most)


def share(part: float, most: int) -> int:
    """How many descriptors of a kind may be open: this part of all that are not our own; between 1 and `most`."""
    return max(1, min(most, int(part * (limit() - _reserve(limit()) - OWN))))


def _reserve(most: int) -> int:
    return min(RESERVE, most // 2)

"""The identity of a process, which tells it from any other process with the same pid.

A pid alone is not enough: pids are counted separately in each container and after each boot, and are used again. So a
process records its pid with the boot, the pid namespace and its start time. It is signalled only if all of them match
the process that has this pid here and now; otherwise it runs elsewhere, or not any more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

PROC = Path("/proc")
STATE, START = 0, 19  # of what /proc/PID/stat says behind the name: when it started is in ticks since the boot
ENDED = "ZX"  # the states of what is no process any more, though its parent has not asked about its end
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, as it knows itself; UNKNOWN is what it could not find out."""

    pid: int
    boot: str = UNKNOWN
    namespace: str = UNKNOWN
    started: str = UNKNOWN

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        return cls(os.getpid(), _boot(), _namespace(), _started("self"))

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """What `str` has made of one; None for anything else."""
        pid, *rest = text.split() or [""]
        if not (pid.isascii() and pid.isdigit() and len(pid) < 12 and len(rest) in (0, 3)):
            return None
        return cls(int(pid), *rest)

    def __str__(self) -> str:
        return " ".join(map(str, astuple(self)))

    def is_here(self) -> bool:
        """Whether the process that has this pid here is provably this one."""
        here = ProcessIdentity(self.pid, _boot(), _namespace(), _started(str(self.pid)))
        proven = here.started != UNKNOWN and (sys.platform != "linux" or UNKNOWN not in astuple(here))
        return proven and here == self

    def signal(self, number: signal.Signals) -> bool:
        """Signal this process; False, and nothing was signalled, if it is not here or may not be signalled."""
        try:
            handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except ProcessLookupError:
            return False
        except OSError:  # an old kernel, or a sandbox
            handle = None
        try:
            if not self.is_here():
                return False
            if handle is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            if handle is not None:
                os.close(handle)
        return True


def network_namespace() -> str:
    """Where a loopback address is the same machine's: the boot and the network namespace; empty if they are unknown."""
    with suppress(OSError):
        if (boot := _boot()) != UNKNOWN:
            return f"{boot} {os.readlink(PROC / 'thread-self/ns/net')}"
    return ""


def _boot() -> str:
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or UNKNOWN
    return UNKNOWN


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink(PROC / "self/ns/pid") or UNKNOWN
    return UNKNOWN


def _started(pid: str) -> str:
    """When a process started, for comparing; UNKNOWN if there is none, or it may not be asked."""
    if sys.platform == "linux":
        with suppress(OSError, IndexError):
            said = (PROC / pid / "stat").read_text(errors="replace").rpartition(")")[2].split()
            return said[START] if said[STATE] not in ENDED else UNKNOWN
        return UNKNOWN
    command = ["ps", "-o", "lstart=", "-p", str(os.getpid()) if pid == "self" else pid]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout
        return "_".join(said.split()) or UNKNOWN
    return UNKNOWN

"""The identity of a process, which tells it from any other process with the same pid.

A pid alone is not enough: each container and each boot counts its own, and pids are used again. So a process records
its pid with the boot, the pid namespace and its start time. A signal is sent only if all of them match the process that
has this pid here and now; otherwise the recorded process runs elsewhere, or has ended.
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
STATE, START = 0, 19  # fields of /proc/PID/stat after the name; the start is in ticks since the boot
ENDED = "ZX"  # states of a process that has ended, and for which its parent has not waited yet
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process as it describes itself; UNKNOWN stands for what it could not find out."""

    pid: int
    boot: str = UNKNOWN
    namespace: str = UNKNOWN
    started: str = UNKNOWN

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        return cls(os.getpid(), _boot(), _namespace(), _started("self"))

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The process that has this pid in our namespace."""
        return cls(pid, _boot(), _namespace(), _started(str(pid)))

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """The inverse of `str`; None if `text` is not of that form."""
        pid, *rest = text.split() or [""]
        if not (pid.isascii() and pid.isdigit() and len(pid) < 12 and len(rest) in (0, 3)):
            return None
        return cls(int(pid), *rest)

    def __str__(self) -> str:
        return " ".join(map(str, astuple(self)))

    def is_here(self) -> bool:
        """Whether the process that has this pid in our namespace is provably this one."""
        here = ProcessIdentity.of(self.pid)
        proven = here.started != UNKNOWN and (sys.platform != "linux" or UNKNOWN not in astuple(here))
        return proven and here == self

    def state(self) -> str:
        """The letter by which Linux describes what its main thread does (see proc(5)); empty if that is unknown."""
        with suppress(OSError, IndexError):
            if self.is_here():
                return (PROC / str(self.pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[STATE]
        return ""

    def signal(self, number: signal.Signals) -> bool:
        """Send it a signal; False, without a signal, if it is not here or we may not signal it."""
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
    """Boot and network namespace, which decide what a loopback address means; empty if they are unknown."""
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
    """When a process started, as an opaque text to compare; UNKNOWN if there is none, or it cannot be read."""
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

"""What a process may leave behind: open files, threads, shared memory, and our own objects that nobody frees."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

OURS = ("shoal.", "libp2p.")
SHARED = re.compile(r" /(memfd:|dev/shm/)")


@dataclass(frozen=True)
class Leftovers:
    """A look at this process; two are equal if nothing was left behind between them (Linux: /proc)."""

    files: Counter[str]  # by kind: sockets, pipes, or what the file is called
    threads: tuple[str, ...]
    tasks: int  # the kernel's threads: those that Python did not start count as well
    mappings: int  # of shared memory
    segments: frozenset[str]  # of shared memory that have a name, whoever made them


def look() -> Leftovers:
    """How things are now; the garbage collector is not asked to help."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Leftovers(
        files=Counter(_kinds("/proc/self/fd")),
        threads=tuple(sorted(re.sub(r"\d+$", "", thread.name) for thread in threading.enumerate())),
        tasks=len(os.listdir("/proc/self/task")),
        mappings=sum(bool(SHARED.search(line)) for line in maps),
        segments=frozenset(os.listdir("/dev/shm")),
    )


def live_objects() -> Counter[str]:
    """How many objects of our classes and of libp2p's are still referred to, by class."""
    gc.collect()
    classes = (type(each) for each in gc.get_objects())
    return Counter(
        f"{each.__module__}.{each.__qualname__}" for each in classes if str(each.__module__).startswith(OURS)
    )


def resident_bytes(pid: int | str = "self") -> int:
    """The memory of a process that is not swapped out."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _kinds(folder: str) -> list[str]:
    """The kinds of the open files, without the kernel's numbers for them."""
    kinds = []
    for name in os.listdir(folder):
        try:
            kinds.append(re.sub(r"\[\d+\]", "", os.readlink(f"{folder}/{name}")))
        except FileNotFoundError:  # the one with which we look
            continue
    return kinds

"""How much memory and disk is available on this machine, and which errors mean that there is too little.

Memory is limited by the machine, by each control group of this process (a container's, a service's), and, for a single
process, by its address space (`ulimit -v`). Memory that the system can reclaim at once, such as file caches, counts as
free.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.node.base.quantities import size
from shoal.protocol.base.errors import ShoalError, Shortage

UNBOUNDED = 1 << 60  # bytes: a higher limit counts as none
OUT_OF_MEMORY = (  # words of errors without a type of their own: from torch's allocators, dlopen, fork
    "out of memory",  # CUDA's libraries, MPS
    "cublas_status_alloc_failed",
    "can't allocate memory",  # torch's allocator on the CPU: on Linux and macOS
    "not enough memory",  # and elsewhere
    "cannot allocate memory",  # the C library
    "failed to map segment",
    "bad_alloc",  # C++
    "can't start new thread",
)
DISK_IS_FULL = ("no space left on device", "disk quota exceeded")  # words of libraries' errors that are no OSError

Files = tuple[str, str, tuple[str, ...]]  # of a control group: its limit, its use; what of it is reclaimable
VERSION_2: Files = "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
VERSION_1: Files = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")


class NoRoom(Shortage):
    """There is too little memory or disk now; later, or for something smaller, it may suffice."""

    code = "no-room"


@dataclass(frozen=True, slots=True)
class Memory:
    """A limit of memory, and how much of it is free now, in bytes; `whose` names it for people."""

    total: int
    free: int
    whose: str = "this machine"

    def __str__(self) -> str:
        return f"{self.whose} has {size(self.total)} of memory, of which {size(self.free)} are free now"


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Memory limits: one for the node and its workers together, one for each process if the system sets one."""

    together: Memory
    process: Memory | None = None

    @property
    def free(self) -> int:
        """Bytes that one process may still allocate."""
        return self.together.free if self.process is None else min(self.together.free, self.process.free)

    def __str__(self) -> str:
        return f"{self.together}; {self.process}" if self.process else str(self.together)


def available_memory() -> AvailableMemory:
    """The memory that is available on this machine now."""
    return AvailableMemory(min([_machine(), *_control_groups()], key=lambda each: each.free), _process())


def check_memory(needed: int, what: str) -> None:
    """NoRoom if this process cannot allocate `needed` bytes for `what`."""
    room = available_memory()
    if needed > room.free:
        raise NoRoom(f"{what} takes {size(needed)} of memory, and {room}")


def check_disk(folder: Path, needed: int, what: str) -> None:
    """NoRoom if the disk of `folder`, which need not exist yet, lacks `needed` bytes for `what`."""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), Path("/"))
    with suppress(OSError):  # a file system that does not say
        if needed > (free := shutil.disk_usage(there).free):
            raise NoRoom(f"{what} takes {size(needed)} on the disk of {there}, which has {size(free)} free")


def scratch_folders() -> list[str]:
    """Folders for temporary files, best first. A system may lack any of them, or a sandbox refuse it: try each."""
    import tempfile  # not at the top: each command imports this file

    found = []
    with suppress(OSError):  # there is none where Python looks
        found.append(tempfile.gettempdir())
    found += [os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp", "/dev/shm"]
    return list(dict.fromkeys(each for each in found if each))


def no_room(error: BaseException | None) -> NoRoom | None:
    """The NoRoom for `error`, if it, or a cause or context of it, is a lack of memory or disk; else None."""
    for each in _chain(error):
        if isinstance(each, NoRoom):
            return each
        if _says_out_of_memory(each):
            return NoRoom(f"memory has run out{_there_is()}. Free some, or choose something smaller")
        if isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" of {each.filename}" if each.filename else ""
            return NoRoom(f"the disk{where} is full: free some of it")
        if not isinstance(each, ShoalError) and any(words in str(each).lower() for words in DISK_IS_FULL):
            return NoRoom("the disk is full: free some of it")
    return None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or a cause or context of it, is a lack of memory, of the machine or a device."""
    return any(map(_says_out_of_memory, _chain(error)))


@contextmanager
def or_no_room(what: str) -> Iterator[None]:
    """Within this context, errors for lack of memory or disk become a NoRoom about `what`; ShoalErrors stay."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if (lack := no_room(error)) is not None:
            raise NoRoom(f"{what}: {lack}") from error
        raise


def _there_is() -> str:
    try:
        return f": {available_memory()}"
    except (MemoryError, OSError, ImportError):  # too little even to find out
        return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _says_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    said = str(error).lower() if isinstance(error, RuntimeError | OSError | ImportError) else ""
    return any(each in said for each in OUT_OF_MEMORY)


def _machine() -> Memory:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = _table(Path("/proc/meminfo"))
    if "MemAvailable" not in facts:
        return Memory(total, total)
    swap, unused = facts.get("SwapTotal", 0), facts.get("SwapFree", 0)
    return Memory(total + swap * 1024, (facts["MemAvailable"] + unused) * 1024)


def _process() -> Memory | None:
    """The limit of this process's address space, which is more than its resident memory."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or limit > UNBOUNDED:
        return None
    used = _table(Path("/proc/self/status")).get("VmSize", 0) * 1024
    return Memory(limit, max(0, limit - used), "a process here (ulimit -v)")


def _control_groups() -> Iterator[Memory]:
    """The limits of our control groups (versions 1 and 2) and of all groups that contain them."""
    for line in _lines(Path("/proc/self/cgroup")):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            root, version = Path("/sys/fs/cgroup"), VERSION_2
        elif "memory" in controllers.split(","):
            root, version = Path("/sys/fs/cgroup/memory"), VERSION_1
        else:
            continue
        ours = root / path.lstrip("/")
        for folder in [each for each in (ours, *ours.parents) if each.is_relative_to(root)]:
            yield from _control_group(folder, version)


def _control_group(folder: Path, version: Files) -> Iterator[Memory]:
    limit_file, used_file, cache = version
    limit, used = _number(folder / limit_file), _number(folder / used_file)
    if limit is None or used is None or limit > UNBOUNDED:
        return
    facts = _table(folder / "memory.stat")
    held = used - sum(facts.get(each, 0) for each in cache)
    yield Memory(limit, max(0, limit - held), "the control group (container or service) of this process")


def _number(path: Path) -> int | None:
    """The number that a file contains; None for "max", or if there is no such file."""
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """The lines `name number` of a file of the kernel; other lines are skipped."""
    words = (line.replace(":", " ").split() for line in _lines(path))
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []

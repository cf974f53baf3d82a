"""A vector of fp32 numbers in memory that the daemon shares with its worker.

The memory has no name: it is a memfd on Linux, an unlinked temporary file elsewhere. Only descriptors refer to it, so
the kernel frees it with the last process, however that ends. The receiver checks that the size is what it was told. A
memfd is sealed against resizing, because reading a mapping whose file has shrunk is fatal.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
from contextlib import suppress
from types import TracebackType

import numpy as np
import numpy.typing as npt

from shoal.node.base.room import scratch_folders
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.shortages import is_temporary

FloatArray = npt.NDArray[np.float32]
ITEM = 4  # bytes of an fp32
MOST_READ = 1 << 30  # bytes: Linux reads less than twice that in a call


class SharedVector:
    """`elements` fp32 numbers at `array`; `fd` is what the other process attaches to."""

    def __init__(self, fd: int, elements: int, *, writable: bool = True) -> None:
        """Map `fd` and own it. On LocalError, if its size is wrong, `fd` still belongs to the caller."""
        size = os.fstat(fd).st_size
        if elements < 1 or size != elements * ITEM:
            raise LocalError(f"a shared vector of {elements} numbers cannot have {size} bytes", code="bug")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        mapping = mmap.mmap(fd, size, access=access)
        self._mapping: mmap.mmap | None = mapping
        self._array: FloatArray | None = np.frombuffer(mapping, dtype=np.float32)
        self._fd = fd
        self.elements = elements

    @classmethod
    def create(cls, elements: int) -> SharedVector:
        """A new vector of zeros; LocalError if there is no room for it, or no file can be opened."""
        try:
            fd = _anonymous_file(elements * ITEM)
        except OSError as error:
            raise LocalError(
                f"no memory can be shared with another process: {error.strerror}", code="system-refused"
            ) from error
        try:
            os.ftruncate(fd, elements * ITEM)
            _seal(fd)
            return cls(fd, elements)
        except BaseException:  # raised again; the descriptor has no owner yet
            os.close(fd)
            raise

    @property
    def fd(self) -> int:
        """The descriptor to pass over a Unix socket."""
        if self._array is None:
            raise LocalError("the shared vector is closed", code="bug")
        return self._fd

    @property
    def array(self) -> FloatArray:
        """The numbers (elements,), not a copy."""
        if self._array is None:
            raise LocalError("the shared vector is closed", code="bug")
        return self._array

    def clear(self) -> None:
        """Return the memory to the system, in all processes; the vector is zeros until it is written again.

        Works on Linux only, and not for every kind of file; else it does nothing.
        """
        mapping = self._mapping  # it may be closed while we work in a thread
        if mapping is not None and sys.platform == "linux":
            with suppress(OSError):
                mapping.madvise(mmap.MADV_REMOVE)

    def copied(self) -> FloatArray:
        """A copy of the numbers, read without faulting in pages of the mapping; LocalError if it is closed."""
        copy = np.empty(self.elements, dtype=np.float32)
        rest, at = copy.data.cast("B"), 0
        while rest:
            if not (count := os.preadv(self.fd, [rest[:MOST_READ]], at)):
                raise LocalError("the shared vector is shorter than it was made", code="bug")
            rest, at = rest[count:], at + count
        return copy

    def close(self) -> None:
        """Close the descriptor; arrays that are still in use keep their mapping until they are dropped."""
        if self._array is not None:
            self._array = self._mapping = None
            os.close(self._fd)

    def __enter__(self) -> SharedVector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:  # an old kernel, or a sandbox: use a file
            if is_temporary(error):
                raise
    errors = []
    for folder in ("/dev/shm", *scratch_folders()):
        try:
            return _unlinked_file(folder, size)
        except OSError as error:
            errors.append(error)
    raise errors[-1]


def _unlinked_file(folder: str, size: int) -> int:
    """A file with its blocks allocated: writing to a mapping of a full file system kills the process."""
    fd, path = tempfile.mkstemp(prefix="shoal-", dir=folder)
    try:
        os.unlink(path)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _seal(fd: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError):  # it is another kind of file
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

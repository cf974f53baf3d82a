"""Errors of this machine that pass by themselves, such as a full disk or too many open files.

Code that would give something up for good because of an error (a run, a listening socket, a file that is to be kept)
asks `is_temporary` first, and tries again if it is. Strangers can cause most shortages for as long as they like, by
connecting; a full disk can be emptied by its owner.
"""

from __future__ import annotations

import errno

from shoal.protocol.base.errors import ShoalError, Shortage

TEMPORARY = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE),  # open files, of this process and of the whole machine
        *(errno.ENOMEM, errno.ENOBUFS),
        *(errno.ENOSPC, errno.EDQUOT),  # room on the disk
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOLCK, errno.ETIMEDOUT),  # EAGAIN: also of processes
        *(errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN),  # a network disk is away, as NFS, FUSE and SMB report it
        *(errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    }
)
NO_THREAD = "can't start new thread"  # the message of a RuntimeError, which has no errno


def is_temporary(error: BaseException | None) -> bool:
    """Whether an error is a shortage or was caused by one; for a group, whether all of its errors are."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_temporary, error.exceptions))
    if isinstance(error, ShoalError):
        return isinstance(error, Shortage) or is_temporary(error.__cause__)
    if isinstance(error, OSError):
        return error.errno in TEMPORARY
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error))


def in_words(error: BaseException) -> str:
    """The error as text for people; without the path, which the caller names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

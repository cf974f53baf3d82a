"""Turns errors of the operating system into sentences: what was refused, and what to do about it.

Code with a fallback, or a better message, catches an OSError where it arises. All others reach one of a few places: the
command line, the node's API, the inference server, or a worker. These use this module, so that a refusal of the system
is never reported as a bug.
"""

from __future__ import annotations

import errno
import os
import sys

from shoal.node.base.room import no_room
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

ELSEWHERE = "choose another folder, on a local disk"
RIGHTS = "change its permissions, or do this as a user who may"
ADVICE = {
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file",
    errno.ELOOP: "check the path: its links lead in a circle",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EFBIG: "the limit of file sizes (`ulimit -f`) or the file system allows no more",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk, or have its quota raised",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "this machine has too many open files",
    errno.EAGAIN: "raise the limit of processes and threads (`ulimit -u`), or end some",
    errno.ENOMEM: "free some memory, or raise its limit (`ulimit -v`)",
    errno.EIO: "its disk fails, or its server does: see the system's log",
    errno.ESTALE: "its disk fails, or its server does: see the system's log",
    errno.ENOLCK: f"its file system cannot do this: {ELSEWHERE}",
    errno.ENOTSUP: f"its file system cannot do this: {ELSEWHERE}",
    errno.EOPNOTSUPP: f"its file system cannot do this: {ELSEWHERE}",
    errno.EXDEV: f"its file system cannot do this: {ELSEWHERE}",
    errno.ENOSYS: "this system, or the sandbox around the process, has no such call",
}

CODES = {errno.ENOSPC: "no-room", errno.EDQUOT: "no-room"}  # of errors in writing; all others have the caller's


def reason(error: OSError) -> str:
    """What is wrong, and what to do; the caller's sentence names the file and the operation."""
    what = error.strerror or (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__)
    advice = ADVICE.get(error.errno or 0)
    return f"{what}; {advice}" if advice else what


def refusal(error: BaseException) -> ShoalError | None:
    """`error` as a ShoalError, if this machine or the network is its cause; None if it is a bug."""
    if (lack := no_room(error)) is not None:
        return lack
    if isinstance(error, OSError):
        return _of_the_network(error) or LocalError(_sentence(error), code="system-refused")
    if isinstance(error, UnicodeEncodeError):  # a path that is not UTF-8, as from a foreign archive
        return LocalError(
            f"{ascii(error.object)[:200]} is not UTF-8: give that file or folder another name", code="name-not-utf8"
        )
    return None


def _of_the_network(error: OSError) -> TransportError | None:
    resolving = sys.modules.get("socket")  # without it nothing was looked up; importing it takes 3 ms
    if isinstance(error, ConnectionError | TimeoutError) or (resolving and isinstance(error, resolving.gaierror)):
        return TransportError(error.strerror or str(error) or type(error).__name__)
    return None


def _sentence(error: OSError) -> str:
    names = [os.fsdecode(each) for each in (error.filename, error.filename2) if isinstance(each, str | bytes)]
    what = f"cannot use {' and '.join(names)}" if names else "the system refuses what this needs"
    return f"{what}: {reason(error)}"

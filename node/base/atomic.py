"""Files that are replaced as a whole: whoever reads one, and whatever crashes meanwhile, finds the old one or the new.

The new content gets a name that nobody else has, in the same folder. A process that is killed while it writes leaves
that file behind, hidden (`UNFINISHED`), and the old one as it was.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CANNOT_BE_FORCED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # fsync of folders, on some systems
UNFINISHED = f".*.{'[0-9a-f]' * 8}.new"  # matches the names of files that are being written, or were left by a crash


def replace_file(path: Path, pieces: Iterable[bytes], mode: int = 0o666) -> None:
    """Replace a file by these bytes; on return it survives a crash.

    On OSError, or an error of `pieces`, the old file is still there, with one exception: if the disk fails once the
    file has its name, as the folder is forced to disk, the new one is there, and may not survive a crash.
    It keeps its mode, and its owner where that may be; a file that was not there gets `mode`, less the umask. A
    symbolic link at `path` is replaced by a file.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    with _opened(path.parent) as folder:  # before anything is written: too many files may be open already
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                with suppress(FileNotFoundError):
                    _take_after(handle, path.lstat())
                file.writelines(pieces)
                file.flush()
                os.fsync(handle)
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        _sync(folder)


def force(path: Path) -> None:
    """Sync a file, or a folder, to disk. A renamed file survives a crash only after its folder was synced."""
    with _opened(path) as descriptor:
        _sync(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Sync a file, or a folder where the system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_BE_FORCED or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise


def _take_after(handle: int, old: os.stat_result) -> None:
    """Give a new file the mode and the owner of the file that it is to replace."""
    if not stat.S_ISREG(old.st_mode):
        return
    with suppress(OSError):  # only root may give a file away, and some file systems know neither
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(handle, old.st_uid, old.st_gid)
    with suppress(OSError):
        os.fchmod(handle, stat.S_IMODE(old.st_mode))

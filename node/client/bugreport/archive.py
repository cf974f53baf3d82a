"""The texts of a report as a .tar.gz: for its owner only, and never over a file that is there."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from shoal.node.base.refusals import reason
from shoal.protocol.base.errors import LocalError

SUFFIX = ".tar.gz"


def default_name(now: float) -> str:
    """A name for a report that is made at this time."""
    return time.strftime("shoal-bugreport-%Y-%m-%d-%H%M%S", time.localtime(now)) + SUFFIX


def check_free(path: Path) -> None:
    """LocalError if there is something at `path`, or no folder to write it to."""
    if path.exists() or path.is_symlink():
        raise LocalError(f"{path} is there already: choose another name for the report", code="already-there")
    if not path.absolute().parent.is_dir():
        raise LocalError(f"cannot write {path}: there is no folder {path.absolute().parent}", code="unwritable")


def write_archive(path: Path, texts: Mapping[str, str], now: float) -> int:
    """Write the texts, in a folder named after the archive, readable by its owner only; returns the size in bytes.

    LocalError if that fails; then no file is left.
    """
    content = _packed(path.name.removesuffix(SUFFIX), texts, now)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise LocalError(f"{path} is there already: choose another name for the report", code="already-there") from None
    except OSError as error:
        raise LocalError(f"cannot write {path}: {reason(error)}", code="unwritable") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LocalError(f"cannot write {path}: {reason(error)}", code="unwritable") from error
    return len(content)


def _packed(folder: str, texts: Mapping[str, str], now: float) -> bytes:
    """The archive's bytes; its entries name no user."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=int(now)) as packer, tarfile.open(fileobj=packer, mode="w") as tar:
        for name, text in texts.items():
            data = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()

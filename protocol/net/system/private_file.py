"""A file that is its owner's alone, and is there whole or not at all: keys and tokens."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_private(path: Path, content: bytes) -> None:
    """Write it, unless there is one already: then that one stays. OSError if that cannot be."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _appear(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _appear(fresh: Path, path: Path) -> None:
    """Only one of two racers wins; but where a file system knows no second names (FAT), the last."""
    try:
        os.link(fresh, path)
    except OSError:
        if not path.exists():
            fresh.rename(path)

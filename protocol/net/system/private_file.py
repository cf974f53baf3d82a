"""Creates files with secrets (keys, tokens): readable by their owner only, and created whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_private(path: Path, content: bytes) -> None:
    """Create the file unless it exists; an existing one stays as it is. OSError if that fails."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _publish(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _publish(fresh: Path, path: Path) -> None:
    """Of two processes that race the first wins; on file systems without hard links (FAT) the last."""
    try:
        os.link(fresh, path)
    except OSError:
        if not path.exists():
            fresh.rename(path)

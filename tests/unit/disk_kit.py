"""A full disk, and in which order files are forced to disk: without a power cut, only the calls themselves show it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

RENAMED = "renamed"


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    """Nothing more can be forced to disk, until the patch is undone."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", full)


def refuse_folders(patch: pytest.MonkeyPatch) -> None:
    """Files can be forced to disk, and their folders cannot, until the patch is undone."""
    fsync = os.fsync

    def forced(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    patch.setattr(os, "fsync", forced)


class DiskLog:
    """Records every fsync and every renaming during a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._events: list[tuple[int, int] | None] = []  # None: something was renamed
        fsync = os.fsync

        def forced(descriptor: int) -> None:
            self._events.append(_state(os.fstat(descriptor)))
            fsync(descriptor)

        def noting(call: Any) -> Any:
            def renamed(*args: Any, **options: Any) -> None:
                call(*args, **options)
                self._events.append(None)

            return renamed

        monkeypatch.setattr(os, "fsync", forced)
        monkeypatch.setattr(os, "rename", noting(os.rename))
        monkeypatch.setattr(os, "replace", noting(os.replace))

    def order(self, *paths: Path) -> list[str]:
        """In order: RENAMED for each renaming, and the names of those `paths` that were forced to disk as they are."""
        names: dict[tuple[int, int] | None, str] = {None: RENAMED} | {_state(path.stat()): path.name for path in paths}
        return [names[event] for event in self._events if event in names]


def _state(found: os.stat_result) -> tuple[int, int]:
    """A file's inode and size; 0 for a folder, whose size means nothing."""
    return found.st_ino, found.st_size if not stat.S_ISDIR(found.st_mode) else 0

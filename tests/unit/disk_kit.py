"""What reaches the disk in which order: without a power cut, only the calls themselves can tell."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

RENAMED = "renamed"


class DiskLog:
    """Notes what is forced to disk, and each renaming, for as long as a test runs."""

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
        """The names of those of `paths` that were forced as they are now, and RENAMED, in their order."""
        names: dict[tuple[int, int] | None, str] = {None: RENAMED} | {_state(path.stat()): path.name for path in paths}
        return [names[event] for event in self._events if event in names]


def _state(found: os.stat_result) -> tuple[int, int]:
    """Which file, and how much of it; a folder's size says nothing."""
    return found.st_ino, found.st_size if not stat.S_ISDIR(found.st_mode) else 0

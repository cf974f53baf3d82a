"""Folders for temporary files; a system may lack any of them, or a sandbox refuse it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress


def scratch_folders() -> list[str]:
    """Where something may be put for as long as we live, best first; whether it can be is found out by trying."""
    found = []
    with suppress(OSError):  # there is none where Python looks
        found.append(tempfile.gettempdir())
    found += [os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp", "/dev/shm"]
    return list(dict.fromkeys(each for each in found if each))

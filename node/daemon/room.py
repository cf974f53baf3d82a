"""How much memory and disk this machine has left, looked at beside the event loop, as a disk may hang."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

from shoal.node.api.answers import RoomLeft
from shoal.node.base.pools import NOTES
from shoal.node.base.room import available_memory

LOOK = 10.0  # seconds


class RoomWatch:
    """Looks again and again while `run` is awaited; `seen` is None until the first look is over."""

    def __init__(self, folder: Path) -> None:
        """`folder` is on the disk that is meant."""
        self.seen: RoomLeft | None = None
        self._folder = folder

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with suppress(OSError):  # a system that does not say
                self.seen = await NOTES.run(look, self._folder)
            await asyncio.sleep(LOOK)


def look(folder: Path) -> RoomLeft:
    """What is left now. Blocks as long as the disk does."""
    memory, disk = available_memory(), shutil.disk_usage(folder)
    return {
        "memory_free": memory.free,
        "memory_total": memory.together.total,
        "disk_free": disk.free,
        "disk_total": disk.total,
    }

"""A small disk for the home of a node, which can be filled: a tmpfs of some megabytes, which only root may mount."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.netlab.namespaces import run

MEBIBYTES = 48  # a home of a tiny run takes half of it
PIECE = bytes(1 << 16)


class Disk:
    """A disk, and the file that fills it."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    @contextmanager
    def filled(self) -> Iterator[None]:
        """There is no room for another byte meanwhile."""
        try:
            with self._filler.open("wb", buffering=0) as file:
                while True:
                    file.write(PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            yield
        finally:
            self._filler.unlink()


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """A new disk at this folder, until the end; processes that use it should have ended by then."""
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={MEBIBYTES}m", "shoal-test", str(folder))
    try:
        yield Disk(folder)
    finally:
        run("umount", "--lazy", str(folder))

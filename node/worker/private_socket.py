"""A listening Unix socket that only this user may open (mode 0600), in a folder of the node's home.

The kernel takes only short paths. Where one is too long the socket lies in a private temporary folder, and a link in
its place says where: callers follow that, see `Path.resolve`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.protocol.shortages import is_temporary

MAX_PATH = 100  # the kernel takes 104 bytes on macOS and 108 on Linux, the closing zero included
PAUSE = 1.0  # seconds until it is tried again, where there are too many open files

log = logging.getLogger("shoal.daemon")


class PrivateSocket:
    """Listens at `path`, which is `place` or, where that is too long, what it links to; OSError if that cannot be."""

    def __init__(self, place: Path) -> None:
        self.path = self._place = place
        self._private: Path | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            place.unlink(missing_ok=True)  # of a daemon that was killed
            if len(os.fsencode(place)) > MAX_PATH:
                self._private = Path(tempfile.mkdtemp(prefix="shoal-"))
                self.path = self._private / place.name
                place.symlink_to(self.path)
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen()
        except OSError:
            self.close()
            raise

    @classmethod
    async def listening(cls, place: Path) -> PrivateSocket:
        """One that listens, as soon as there are files to be had; OSError if that cannot be."""
        while True:
            try:
                return cls(place)
            except OSError as error:
                if not is_temporary(error):
                    raise
                log.warning("nobody can be let in at %s yet: %s", place, error.strerror, extra={"code": "out-of-files"})
                await asyncio.sleep(PAUSE)

    async def accept(self) -> socket.socket:
        """The next that comes, which is the caller's to close."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        return connection

    async def next(self) -> socket.socket:
        """The same; while there are too many open files nobody is let in."""
        while True:
            try:
                return await self.accept()
            except OSError as error:
                if not (is_temporary(error) or isinstance(error, ConnectionError)):
                    raise
                log.debug("nobody is let in at %s: %s", self.path, error)
                await asyncio.sleep(PAUSE)

    async def connections(self) -> AsyncIterator[socket.socket]:
        """All that come, for ever."""
        while True:
            yield await self.next()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        self.path.unlink(missing_ok=True)
        if self._private:
            self._place.unlink(missing_ok=True)
            shutil.rmtree(self._private, ignore_errors=True)

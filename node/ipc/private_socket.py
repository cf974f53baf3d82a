"""A listening Unix socket that only this user may open (mode 0600), in a folder of the node's home.

The kernel takes only short paths, and not every file system has sockets. If the socket cannot be made in its place, it
is made in a private temporary folder, and a symbolic link in its place, or a file with its path, leads there: see
`find_socket`. It is made and removed in a thread, because the disk may hang.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from shoal.node.base.pools import SOCKETS
from shoal.node.base.room import scratch_folders
from shoal.protocol.base.shortages import is_temporary

MAX_PATH = 100  # the kernel takes 104 bytes on macOS and 108 on Linux, the closing zero included
PAUSE = 1.0  # seconds until the next try, while there are too many open files
SOON = 1.0  # seconds in which a healthy disk removes a socket
PREFIX = "shoal-"  # of the names of private temporary folders

log = logging.getLogger("shoal.daemon")


class PrivateSocket:
    """Listens at `path`, which is `place` or where `place` leads; OSError if no socket can be made.

    The constructor and `close` access the disk; in an event loop use `listening` and `end` instead.
    """

    def __init__(self, place: Path) -> None:
        self.path = self._place = place
        self._private: Path | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_left(place)
            self._socket.setblocking(False)
            self._bind()
            self._socket.listen()
        except OSError:
            self.close()
            raise

    def _bind(self) -> None:
        try:
            self._bind_at(self._place)
        except OSError as error:
            if is_temporary(error) or self._place.exists():
                raise
            self._bind_elsewhere(error)

    def _bind_elsewhere(self, why: OSError) -> None:
        """Bind in a private temporary folder, and make `place` lead there; raises `why` if none works."""
        for folder in scratch_folders():
            with suppress(OSError):
                self._private = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
                self._bind_at(self._private / self._place.name)
                _lead(self._place, self.path)
                return
            self._remove_private()
        raise why

    def _bind_at(self, path: Path) -> None:
        if len(os.fsencode(path)) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, "the path is too long for a socket")
        self._socket.bind(str(path))
        path.chmod(0o600)
        self.path = path

    @classmethod
    async def made(cls, place: Path) -> PrivateSocket:
        """A listening socket, made in a thread; OSError if that is impossible."""
        making = SOCKETS.begin(partial(cls, place))
        try:
            return await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_unwanted)
            await _soon(lambda: None)
            raise

    @classmethod
    async def listening(cls, place: Path) -> PrivateSocket:
        """A listening socket; waits while there are too many open files. OSError if it is impossible."""
        while True:
            try:
                return await cls.made(place)
            except OSError as error:
                if not is_temporary(error):
                    raise
                log.warning("nobody can be let in at %s yet: %s", place, error.strerror, extra={"code": "out-of-files"})
                await asyncio.sleep(PAUSE)

    async def accept(self) -> socket.socket:
        """The next connection, which the caller has to close."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        return connection

    async def next(self) -> socket.socket:
        """The next connection; waits while there are too many open files."""
        while True:
            try:
                return await self.accept()
            except OSError as error:
                if not (is_temporary(error) or isinstance(error, ConnectionError)):
                    raise
                log.debug("nobody is let in at %s: %s", self.path, error)
                await asyncio.sleep(PAUSE)

    async def connections(self) -> AsyncIterator[socket.socket]:
        """All connections, without end."""
        while True:
            yield await self.next()

    async def end(self) -> None:
        """Close the socket; if the disk hangs, return all the same, and it is removed later."""
        self._socket.close()
        await _soon(self.close)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._remove_private()

    def _remove_private(self) -> None:
        if self._private:
            with suppress(OSError):
                self._place.unlink(missing_ok=True)
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None


async def _soon(work: Callable[[], None]) -> None:
    """Do `work` in the pool's thread, after earlier work, and wait SOON seconds at most."""
    await asyncio.wait([asyncio.wrap_future(SOCKETS.begin(work))], timeout=SOON)


def _close_unwanted(making: Future[PrivateSocket]) -> None:
    """Close a socket whose creation was cancelled by its caller."""
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def find_socket(place: Path) -> Path:
    """The path of the socket that belongs at `place`; OSError if `place` cannot be read."""
    return Path(os.fsdecode(place.read_bytes())) if place.is_file() else place.resolve()


def _remove_left(place: Path) -> None:
    """Remove what a daemon that was killed has left at `place`, and the temporary folder to which that leads.

    Nobody has them any more, as one daemon at a time has a home. Of the folder only a socket is removed, and then it,
    if it is empty: `place` may have been changed by somebody.
    """
    if place.is_symlink() or place.is_file():
        with suppress(OSError, RuntimeError):  # links that lead in a circle
            socket_left = find_socket(place)
            folder = socket_left.parent
            if folder.name.startswith(PREFIX) and folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                if socket_left.is_socket():
                    socket_left.unlink()
                folder.rmdir()
    place.unlink(missing_ok=True)


def _lead(place: Path, path: Path) -> None:
    try:
        place.symlink_to(path)
    except OSError:  # a file system without symbolic links, such as FAT
        place.write_bytes(os.fsencode(path))
